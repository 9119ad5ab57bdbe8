// Writes a block's sums to the images.
#pragma once

#include <type_traits>

#include "common/cpu/levels.h"
#include "gaussians/cpu/images.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)

struct ImageTarget {
  Outputs outputs;
  View view;
  int number;
  Features features;
  const float* background;  // The view's background, or null.
};

// Adds the background, weighted by the final transmittance.
LG_INLINE void write_colors(const ImageTarget& t, const BlockPixels& block, Pack transmittance, const float* sums) {
  const int channels = t.features.colors;
  const auto color = [&](int c) {
    const Pack sum = Pack::load(sums + c * kLanes);
    return t.background != nullptr ? fma(transmittance, Pack(t.background[c]), sum) : sum;
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
  if (t.features.inverse_depth) {
    store_plane(block, Pack::load(next), out.inverse_depth);
    next += kLanes;
  }
  if (t.features.hit_distance) {
    const Pack distance = Pack::load(next);
    next += kLanes;
    store_plane(block, distance, out.hit_distance);
    store_plane(block, distance / max(alpha, Pack(kLeastAlpha)), out.expected_hit_distance);
  }
  if (t.features.normals) {
    const auto part = [&](int k) { return Pack::load(next + k * kLanes); };
    store_colors_3(block, {part(0), part(1), part(2)}, out.normals);
    next += 3 * kLanes;
  }
  if (t.features.of_depths()) {
    store_plane(block, Pack::load(next), out.median_depth);
    store_plane(block, Pack::load(next + kLanes), out.distortion);
  }
  if (out.contributors != nullptr) {
    alignas(64) int lanes[kLanes];
    truncate(contributors).store(lanes);
    store_rows(block, lanes, 1, out.contributors);
  }
}

// Assembles a tile in separate memory, then writes it row by row, past the cache if rows fill whole lines: the image is
// not read again soon, and writing parts of lines would first fetch them.
class TileImages {
 public:
  static constexpr int kPixels = kTileWidth * kTileHeight;
  // Floats of memory that a tile needs.
  static std::size_t floats(int channels) { return static_cast<std::size_t>(kPixels) * (channels + 13); }

  TileImages(const ImageTarget& images, float* memory) : images_(images), tile_(images) {
    tile_.view.width = kTileWidth;
    tile_.view.height = kTileHeight;
    tile_.number = 0;
    const int channels = images.features.colors;
    const auto plane = [&](auto*& pointer, int width) {
      if (pointer == nullptr) return;
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory);
      memory += kPixels * width;
    };
    Outputs& own = tile_.outputs;
    // Levels are computed from the floats.
    if (own.color_levels != nullptr) own.color = memory;
    plane(own.color, channels);
    plane(own.alpha, 1);
    plane(own.transmittance, 1);
    plane(own.depth, 1);
    plane(own.expected_depth, 1);
    plane(own.inverse_depth, 1);
    plane(own.hit_distance, 1);
    plane(own.expected_hit_distance, 1);
    plane(own.normals, 3);
    plane(own.median_depth, 1);
    plane(own.distortion, 1);
    plane(own.contributors, 1);
  }

  const ImageTarget& tile() const { return tile_; }

  void write(int left, int top) const {
    const Outputs &from = tile_.outputs, &to = images_.outputs;
    write_plane(from.color, to.color, images_.features.colors, left, top);
    write_color_levels(from.color, to.color_levels, left, top);
    write_plane(from.alpha, to.alpha, 1, left, top);
    write_plane(from.transmittance, to.transmittance, 1, left, top);
    write_plane(from.depth, to.depth, 1, left, top);
    write_plane(from.expected_depth, to.expected_depth, 1, left, top);
    write_plane(from.inverse_depth, to.inverse_depth, 1, left, top);
    write_plane(from.hit_distance, to.hit_distance, 1, left, top);
    write_plane(from.expected_hit_distance, to.expected_hit_distance, 1, left, top);
    write_plane(from.normals, to.normals, 3, left, top);
    write_plane(from.median_depth, to.median_depth, 1, left, top);
    write_plane(from.distortion, to.distortion, 1, left, top);
    write_plane(from.contributors, to.contributors, 1, left, top);
  }

 private:
  // Calls write(place in a tile's plane, place in an image, pixels) for each row that is on the film.
  template <class Write>
  void each_row(int left, int top, const Write& write) const {
    const View& view = images_.view;
    const int columns = view.width - left < kTileWidth ? view.width - left : kTileWidth;
    const int rows = view.height - top < kTileHeight ? view.height - top : kTileHeight;
    for (int r = 0; r < rows; ++r) {
      const int64_t pixel = (static_cast<int64_t>(images_.number) * view.height + top + r) * view.width + left;
      write(static_cast<int64_t>(r) * kTileWidth, pixel, columns);
    }
  }

  void write_color_levels(const float* from, uint8_t* to, int left, int top) const {
    if (to == nullptr) return;
    const int64_t channels = images_.features.colors;
    each_row(left, top, [&](int64_t place, int64_t pixel, int columns) {
      write_levels(from + place * channels, static_cast<std::size_t>(columns * channels), to + pixel * channels);
    });
  }

  template <class Value>
  void write_plane(const Value* from, Value* to, int channels, int left, int top) const {
    if (to == nullptr) return;
    each_row(left, top, [&](int64_t place, int64_t pixel, int columns) {
      const std::size_t bytes = sizeof(Value) * static_cast<std::size_t>(columns) * channels;
      Value* row = to + pixel * channels;
      const Value* source = from + place * channels;
      if (bytes % 64 != 0 || reinterpret_cast<uintptr_t>(row) % 64 != 0) {
        std::memcpy(row, source, bytes);
        return;
      }
      const float* lanes = reinterpret_cast<const float*>(source);
      for (std::size_t i = 0; i < bytes / sizeof(float); i += kLanes) {
        stream(Pack::load(lanes + i), reinterpret_cast<float*>(row) + i);
      }
    });
  }

  ImageTarget images_, tile_;
};

LG_END
