// From a block's sums to the images.
#pragma once

#include "gaussians/cpu_images.h"
#include "gaussians/math_visit.h"

LG_BEGIN_ENGINE(gaussians)

struct ImageTarget {
  const Outputs& outputs;
  const Scene& scene;
  const View& view;
  int number;
  const Features& features;
};

// Background shows through what is left.
LG_INLINE void write_colors(const ImageTarget& t, const BlockPixels& block, Pack transmittance, const float* sums) {
  const int channels = t.features.colors;
  const float* background =
      t.scene.background != nullptr ? t.scene.background + static_cast<int64_t>(t.number) * channels : nullptr;
  const auto color = [&](int c) {
    const Pack sum = Pack::load(sums + c * kLanes);
    return background != nullptr ? fma(transmittance, Pack(background[c]), sum) : sum;
  };
  if (channels == 3) {
    store_colors_3(block, {color(0), color(1), color(2)}, t.outputs.color);
    return;
  }
  for (int c = 0; c < channels; ++c) store_channel(block, color(c), c, channels, t.outputs.color);
}

LG_INLINE void write_block(const ImageTarget& t, int x, int y, Pack transmittance, Pack contributors,
                           const float* sums) {
  const Outputs& out = t.outputs;
  const BlockPixels block(t.view, t.number, x, y);
  if (out.color != nullptr) write_colors(t, block, transmittance, sums);
  const Pack alpha = Pack(1.0f) - transmittance;
  store_plane(block, alpha, out.alpha);
  store_plane(block, transmittance, out.transmittance);
  const float* next = sums + t.features.colors * kLanes;
  if (t.features.depth) {
    const Pack depth = Pack::load(next);
    next += kLanes;
    store_plane(block, depth, out.depth);
    store_plane(block, depth / max(alpha, Pack(kLeastAlpha)), out.expected_depth);
  }
  if (t.features.inverse_depth) store_plane(block, Pack::load(next), out.inverse_depth);
  if (out.contributors != nullptr) {
    alignas(64) int lanes[kLanes];
    truncate(contributors).store(lanes);
    store_rows(block, lanes, 1, out.contributors);
  }
}

LG_END
