// From a block's sums to the images.
#pragma once

#include "common/film_tiles.h"
#include "gaussians/cpu_view.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr float kMinAlpha = 1e-10f;  // What depth is divided by at the least, for the expected depth.

struct ImageTarget {
  const Outputs& outputs;
  const Scene& scene;
  const View& view;
  int number;
  const Features& features;
};

// The pixels of a block at (x, y) that are on the film: their index in the images, and their lane.
template <class Visit>
LG_INLINE void each_pixel(const View& view, int number, int x, int y, const Visit& visit) {
  const int columns = view.width - x < 4 ? view.width - x : 4, rows = view.height - y < 4 ? view.height - y : 4;
  for (int row = 0; row < rows; ++row) {
    const int64_t index = (static_cast<int64_t>(number) * view.height + y + row) * view.width + x;
    for (int c = 0; c < columns; ++c) visit(index + c, row * 4 + c);
  }
}

LG_INLINE void write_plane(const ImageTarget& t, float* plane, int x, int y, Pack value) {
  if (plane == nullptr) return;
  alignas(64) float lanes[kLanes];
  value.store(lanes);
  each_pixel(t.view, t.number, x, y, [&](int64_t pixel, int lane) { plane[pixel] = lanes[lane]; });
}

// Background shows through what is left.
inline void write_colors(const ImageTarget& t, int x, int y, Pack transmittance, const float* sums) {
  const int channels = t.features.colors;
  const float* background =
      t.scene.background != nullptr ? t.scene.background + static_cast<int64_t>(t.number) * channels : nullptr;
  alignas(64) float lanes[kLanes];
  for (int c = 0; c < channels; ++c) {
    Pack value = Pack::load(sums + c * kLanes);
    if (background != nullptr) value = fma(transmittance, Pack(background[c]), value);
    value.store(lanes);
    float* color = t.outputs.color + c;
    each_pixel(t.view, t.number, x, y, [&](int64_t pixel, int lane) { color[pixel * channels] = lanes[lane]; });
  }
}

inline void write_block(const ImageTarget& t, int x, int y, Pack transmittance, Pack contributors, const float* sums) {
  const Outputs& out = t.outputs;
  if (out.color != nullptr) write_colors(t, x, y, transmittance, sums);
  const Pack alpha = Pack(1.0f) - transmittance;
  write_plane(t, out.alpha, x, y, alpha);
  write_plane(t, out.transmittance, x, y, transmittance);
  const float* next = sums + t.features.colors * kLanes;
  if (t.features.depth) {
    const Pack depth = Pack::load(next);
    next += kLanes;
    write_plane(t, out.depth, x, y, depth);
    write_plane(t, out.expected_depth, x, y, depth / max(alpha, Pack(kMinAlpha)));
  }
  if (t.features.inverse_depth) write_plane(t, out.inverse_depth, x, y, Pack::load(next));
  if (out.contributors != nullptr) {
    alignas(64) int lanes[kLanes];
    truncate(contributors).store(lanes);
    each_pixel(t.view, t.number, x, y, [&](int64_t pixel, int lane) { out.contributors[pixel] = lanes[lane]; });
  }
}

LG_END
