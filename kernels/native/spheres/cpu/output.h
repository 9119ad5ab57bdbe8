// Writes a block's state to the output images.
#pragma once

#include "common/cpu/levels.h"
#include "common/cpu/transpose.h"
#include "spheres/cpu/draw.h"

LG_BEGIN_ENGINE(spheres)

// A pixel's share of a tracked sphere, w / D.
template <bool kExact>
LG_INLINE float tracked_weight(const Camera& camera, const Settings& settings, const float* record, float x, float y,
                               float maximum, float low, float denominator) {
  if constexpr (kExact) {
    const ExactView view = exact_view(camera, settings);
    const ExactGeometry<float> g =
        camera.orthogonal ? exact_geometry<float, true>(record, exact_ray<float, true>(view, x, y), view, true)
                          : exact_geometry<float, false>(record, exact_ray<float, false>(view, x, y), view, true);
    return exact_share(record, g, maximum, low, denominator);
  } else {
    const CompatView view = compat_view(camera, settings);
    const float ax = x + static_cast<float>(camera.border_x), ay = y + static_cast<float>(camera.border_y);
    const CompatGeometry<float> g =
        camera.orthogonal ? compat_geometry<float, true>(record, compat_ray<float, true>(camera, ax, ay), view)
                          : compat_geometry<float, false>(record, compat_ray<float, false>(camera, ax, ay), view);
    return compat_share(record, g, maximum, denominator);
  }
}

// The pixels of a block that lie on the film, and their copies from packs to images. Values move as bytes: as floats,
// ids are denormals and NaN.
struct BlockPixels {
  int columns, rows;  // 0 if none is on the film.
  int64_t first;      // y * width + x of the first pixel
  int64_t width;

  BlockPixels(const Camera& camera, int x0, int y0)
      : columns(camera.width - x0 < 4 ? camera.width - x0 : 4),
        rows(camera.height - y0 < 4 ? camera.height - y0 : 4),
        first(static_cast<int64_t>(y0) * camera.width + x0),
        width(camera.width) {}

  LG_INLINE bool none() const { return columns <= 0 || rows <= 0; }
  LG_INLINE int64_t index(int lane) const { return first + lane / 4 * width + lane % 4; }
  LG_INLINE bool has(int lane) const { return lane % 4 < columns && lane / 4 < rows; }

  // Writes all `kCount` values of each pixel to the image `to`; `values` has them pixel by pixel.
  template <int kCount>
  LG_INLINE void write_rows(void* to, const float* values) const {
    constexpr std::size_t kBytes = sizeof(float) * kCount;
    for (int y = 0; y < rows; ++y) {
      char* row = static_cast<char*>(to) + kBytes * (first + y * width);
      if (columns == 4) {
        __builtin_memcpy(row, values + 4 * kCount * y, 4 * kBytes);
      } else {
        __builtin_memcpy(row, values + 4 * kCount * y, columns * kBytes);
      }
    }
  }
  LG_INLINE void write(void* to, Pack values) const {
    alignas(64) float lanes[kLanes];
    values.store(lanes);
    write_rows<1>(to, lanes);
  }
  // Writes value `slot` of each pixel's `count` values to the image `to`.
  LG_INLINE void write_slot(void* to, int64_t count, int64_t slot, Pack values) const {
    alignas(64) float lanes[kLanes];
    values.store(lanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!has(lane)) continue;
      __builtin_memcpy(static_cast<char*>(to) + sizeof(float) * (index(lane) * count + slot), lanes + lane,
                       sizeof(float));
    }
  }
  LG_INLINE void write_level_slot(uint8_t* to, int64_t count, int64_t slot, Pack values) const {
    uint8_t levels[kLanes];
    store_levels(values, levels);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (has(lane)) to[index(lane) * count + slot] = levels[lane];
    }
  }
};

LG_INLINE Pack tracked_depth(const float* state) {
  const Pack depth = Pack::load(state);
  return select(depth < Pack(kNoDepth), depth, Pack(-1.0f));
}

// An image of a tile. In the whole image the four rows of a block lie far apart, often in the same cache set.
struct TileRows {
  float* rows;
  int count;  // Floats per pixel; at most a pack.

  LG_INLINE int stride() const { return tile_row_floats(count); }
  LG_INLINE float* block(int b) const { return rows + b / kBlocksX * 4 * stride() + b % kBlocksX * 4 * count; }

  LG_INLINE void put(int b, Pack x, Pack y, Pack z) const {
    alignas(64) float triples[3 * kLanes];
    interleave_3(x, y, z, triples);
    put_quarters<3>(b, triples);
  }
  LG_INLINE void put(int b, Pack value) const {
    alignas(64) float values[kLanes];
    value.store(values);
    put_quarters<1>(b, values);
  }
  LG_INLINE void put(int b, Pack values[kLanes]) const {
    transpose_16(values);
    float* to = block(b);
    // Values beyond a pixel's own are overwritten by the next pixel.
    for (int lane = 0; lane < kLanes; ++lane) {
      store_unaligned(values[lane], to + lane / 4 * stride() + lane % 4 * count);
    }
  }
  LG_INLINE const float* row(int number) const { return rows + number * stride(); }
  // Writes a row to the image in whole lines, past the cache.
  LG_INLINE void write(int number, int pixels, void* to_row) const {
    const float* from = row(number);
    float* to = static_cast<float*>(to_row);
    const int floats = pixels * count;
    if (floats % kLanes == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
      for (int i = 0; i < floats; i += kLanes) stream(Pack::load(from + i), to + i);
    } else {
      __builtin_memcpy(to, from, sizeof(float) * floats);
    }
  }

 private:
  // Writes four floats at a time, which never span two packs: such a load would have to wait until both are in the
  // cache.
  template <int kCount>
  LG_INLINE void put_quarters(int b, const float* values) const {
    float* to = block(b);
#pragma GCC unroll 12
    for (int i = 0; i < 4 * kCount; ++i) {
      __builtin_memcpy(to + i / kCount * stride() + i % kCount * 4, values + 4 * i, 4 * sizeof(float));
    }
  }
};

LG_INLINE void write_info(const DrawArguments& arguments, const TileImages& images, const Outputs& out,
                          const BlockPixels& pixels, int block, const float* state, Pack maximum) {
  const int track = arguments.track, count = 3 + 2 * track;
  const float* depths = state + (kBlockFields + arguments.channels) * kLanes;
  const float* ids = depths + track * kLanes;
  const Pack denominator = Pack::load(state + kDenominator * kLanes), near = Pack::load(state + kMaxNear * kLanes);
  if (packs_info(track)) {
    Pack values[kLanes];
    values[0] = maximum;
    values[1] = denominator;
    values[2] = near;
    for (int t = 0; t < track; ++t) {
      values[3 + 2 * t] = Pack::load(ids + t * kLanes);
      values[4 + 2 * t] = tracked_depth(depths + t * kLanes);
    }
    for (int i = count; i < kLanes; ++i) values[i] = Pack(0.0f);
    TileRows{images.info, count}.put(block, values);
    return;
  }
  pixels.write_slot(out.info, count, 0, maximum);
  pixels.write_slot(out.info, count, 1, denominator);
  pixels.write_slot(out.info, count, 2, near);
  for (int t = 0; t < track; ++t) {
    pixels.write_slot(out.info, count, 3 + 2 * t, Pack::load(ids + t * kLanes));
    pixels.write_slot(out.info, count, 4 + 2 * t, tracked_depth(depths + t * kLanes));
  }
}

template <bool kExact>
void write_weights(const Camera& camera, const DrawArguments& arguments, const Prepared& prepared, const Outputs& out,
                   const BlockPixels& pixels, const float* state) {
  const int track = arguments.track;
  const float* ids = state + (kBlockFields + arguments.channels + track) * kLanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!pixels.has(lane)) continue;
    const int64_t index = pixels.index(lane);
    const auto get = [&](int field) { return state[field * kLanes + lane]; };
    for (int t = 0; t < track; ++t) {
      const int id = bits(ids[t * kLanes + lane]);
      float* to = out.weights + index * track + t;
      *to = id < 0 ? 0.0f
                   : tracked_weight<kExact>(
                         camera, *arguments.settings, prepared.records + static_cast<int64_t>(id) * kRecordFloats,
                         static_cast<float>(index % camera.width), static_cast<float>(index / camera.width),
                         get(kMaximum), get(kMaximumLow), get(kDenominator));
    }
  }
}

// Writes three channels to the tile's image.
LG_INLINE void write_colors(const DrawArguments& arguments, const Outputs& out, const BlockPixels& pixels,
                            const TileImages& images, int block, const float* state, Pack inverse) {
  if (out.color == nullptr && out.color_levels == nullptr) return;
  const int channels = arguments.channels;
  const auto color = [&](int c) { return Pack::load(state + (kBlockFields + c) * kLanes) * inverse; };
  if (channels == 3) {
    TileRows{images.color, 3}.put(block, color(0), color(1), color(2));
    return;
  }
  for (int c = 0; c < channels; ++c) {
    if (out.color != nullptr) pixels.write_slot(out.color, channels, c, color(c));
    if (out.color_levels != nullptr) pixels.write_level_slot(out.color_levels, channels, c, color(c));
  }
}

template <bool kExact>
void write_block(const Camera& camera, const DrawArguments& arguments, const Prepared& prepared, const Outputs& out,
                 const float* state, const TileImages& images, int block) {
  const BlockPixels pixels(camera, images.left + block % kBlocksX * 4, images.top + block / kBlocksX * 4);
  if (pixels.none()) return;
  const auto get = [&](int field) { return Pack::load(state + field * kLanes); };
  const Pack maximum = get(kMaximum), low = get(kMaximumLow), denominator = get(kDenominator);
  const Pack inverse = Pack(1.0f) / (kExact ? denominator : max(denominator, Pack(kFeps)));
  write_colors(arguments, out, pixels, images, block, state, inverse);
  if (out.alpha != nullptr) {
    Pack background = low;
    if constexpr (kExact) background = exact_background(exact_view(camera, *arguments.settings), maximum, low);
    pixels.write(out.alpha, Pack(1.0f) - background * inverse);
  }
  const int track = arguments.track;
  if (track > 0) {
    const float* depths = state + (kBlockFields + arguments.channels) * kLanes;
    if (out.info != nullptr) {
      write_info(arguments, images, out, pixels, block, state, kExact ? maximum + low : maximum);
    }
    if (out.depth != nullptr) pixels.write(out.depth, tracked_depth(depths));
    for (int t = 0; out.ids != nullptr && t < track; ++t) {
      pixels.write_slot(out.ids, track, t, Pack::load(depths + (track + t) * kLanes));
    }
  }
  if (out.hits != nullptr) pixels.write(out.hits, get(kHits));
  if (out.blend != nullptr) TileRows{images.blend, 3}.put(block, maximum, low, denominator);
  if (out.stop != nullptr) TileRows{images.stop, 1}.put(block, get(kStop));
  if (out.weights != nullptr) write_weights<kExact>(camera, arguments, prepared, out, pixels, state);
}

// Writes the next rows of a tile, at most `rows`.
inline void write_rows(const Camera& camera, const DrawArguments& arguments, const Outputs& out, TileImages& images,
                       int rows) {
  const int width = camera.width - images.left < kTileWidth ? camera.width - images.left : kTileWidth;
  for (; rows > 0 && images.row < kTileHeight; --rows, ++images.row) {
    const int y = images.top + images.row;
    if (y >= camera.height) continue;
    const int64_t first = static_cast<int64_t>(y) * camera.width + images.left;
    const auto write = [&](float* from, int count, void* image) {
      if (image != nullptr) TileRows{from, count}.write(images.row, width, static_cast<float*>(image) + first * count);
    };
    if (arguments.channels == 3) {
      write(images.color, 3, out.color);
      if (out.color_levels != nullptr) {
        const float* from = TileRows{images.color, 3}.row(images.row);
        write_levels(from, 3 * static_cast<std::size_t>(width), out.color_levels + 3 * first);
      }
    }
    write(images.blend, 3, out.blend);
    write(images.stop, 1, out.stop);
    if (packs_info(arguments.track)) write(images.info, 3 + 2 * arguments.track, out.info);
  }
}

LG_END
