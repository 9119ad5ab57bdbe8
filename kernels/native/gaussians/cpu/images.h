// Loads and stores blocks of 4 x 4 pixels of images.
#pragma once

#include <cstring>

#include "common/cpu/transpose.h"
#include "gaussians/cpu/view.h"

LG_BEGIN_ENGINE(gaussians)

// The part of a block that is on the film, and the place of its pixels in the images of all views.
struct BlockPixels {
  int columns, rows;
  int64_t first, step;  // Offset of the first pixel, and from row to row.

  BlockPixels(const View& view, int number, int x, int y)
      : columns(view.width - x < 4 ? view.width - x : 4),
        rows(view.height - y < 4 ? view.height - y : 4),
        first((static_cast<int64_t>(number) * view.height + y) * view.width + x),
        step(view.width) {}

  // Calls row(index of the first pixel in the image, its lane) for each row.
  template <class Row>
  LG_INLINE void each_row(const Row& row) const {
    for (int r = 0; r < rows; ++r) row(first + r * step, 4 * r);
  }
};

// Copies to and from `channels` floats per pixel; lanes that are not on the film are 0.
template <class Value>
LG_INLINE void store_rows(const BlockPixels& block, const Value* lanes, int channels, Value* image) {
  if (block.columns == 4 && block.rows == 4) {
    for (int r = 0; r < 4; ++r) {
      std::memcpy(image + (block.first + r * block.step) * channels, lanes + 4 * r * channels,
                  4 * sizeof(Value) * static_cast<std::size_t>(channels));
    }
    return;
  }
  block.each_row([&](int64_t pixel, int lane) {
    for (int i = 0; i < block.columns * channels; ++i) image[pixel * channels + i] = lanes[lane * channels + i];
  });
}

LG_INLINE void load_rows(const BlockPixels& block, const float* image, int channels, float* lanes) {
  if (block.columns == 4 && block.rows == 4) {
    for (int r = 0; r < 4; ++r) {
      std::memcpy(lanes + 4 * r * channels, image + (block.first + r * block.step) * channels,
                  4 * sizeof(float) * static_cast<std::size_t>(channels));
    }
    return;
  }
  std::memset(lanes, 0, sizeof(float) * kLanes * static_cast<std::size_t>(channels));
  block.each_row([&](int64_t pixel, int lane) {
    for (int i = 0; i < block.columns * channels; ++i) lanes[lane * channels + i] = image[pixel * channels + i];
  });
}

LG_INLINE void store_plane(const BlockPixels& block, Pack value, float* plane) {
  if (plane == nullptr) return;
  alignas(64) float lanes[kLanes];
  value.store(lanes);
  store_rows(block, lanes, 1, plane);
}

LG_INLINE Pack load_plane(const BlockPixels& block, const float* plane) {
  if (plane == nullptr) return Pack(0.0f);
  alignas(64) float lanes[kLanes];
  load_rows(block, plane, 1, lanes);
  return Pack::load(lanes);
}

LG_INLINE void store_channel(const BlockPixels& block, Pack value, int channel, int channels, float* image) {
  alignas(64) float lanes[kLanes];
  value.store(lanes);
  block.each_row([&](int64_t pixel, int lane) {
    for (int i = 0; i < block.columns; ++i) image[(pixel + i) * channels + channel] = lanes[lane + i];
  });
}

LG_INLINE Pack load_channel(const BlockPixels& block, const float* image, int channel, int channels) {
  alignas(64) float lanes[kLanes] = {};
  block.each_row([&](int64_t pixel, int lane) {
    for (int i = 0; i < block.columns; ++i) lanes[lane + i] = image[(pixel + i) * channels + channel];
  });
  return Pack::load(lanes);
}

struct Colors3 {
  Pack r, g, b;
};

LG_INLINE Colors3 load_colors_3(const BlockPixels& block, const float* image) {
  alignas(64) float lanes[3 * kLanes];
  load_rows(block, image, 3, lanes);
  Colors3 colors;
  deinterleave_3(lanes, colors.r, colors.g, colors.b);
  return colors;
}

LG_INLINE void store_colors_3(const BlockPixels& block, const Colors3& colors, float* image) {
  alignas(64) float lanes[3 * kLanes];
  interleave_3(colors.r, colors.g, colors.b, lanes);
  store_rows(block, lanes, 3, image);
}

LG_END
