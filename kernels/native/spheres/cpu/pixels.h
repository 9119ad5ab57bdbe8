// The inputs of the backward passes: the pixels of a block, and for exact the pixels of a tile, block by block.
#pragma once

#include "common/cpu/transpose.h"
#include "spheres/cpu/block.h"
#include "spheres/math/blend.h"

LG_BEGIN_ENGINE(spheres)

// Packs of a block that the pairs read, in order; then K upstream gradients divided by D. The blocks of a tile together
// must leave room in the first-level cache for its spheres.
enum PixelField {
  kRay0,
  kRay1,
  kRay2,
  kRay3,
  kRay4,
  kRay5,
  kPixelMaximum,
  kPixelLow,
  kUpstreamImage,  // Sum of G * I and the alpha's share, divided by -D
  kLast,           // int: entries of the tile's list that the pixel visited
  kClosest,        // int: the sphere that gave the depth
  kUpstreamDepth,
  kSum0,
  kSum1,
  kSum2,  // Sums over the pairs of the pixel, for the camera.
  kPixelFields
};

inline int pixel_floats(int channels) { return (kPixelFields + channels) * kLanes; }
// Packs of the background's sums over a tile: K colours, then dL/de0 (e0 - M) and dL/de0 M.
inline int background_floats(int channels) { return (channels + 2) * kLanes; }
inline int tile_pixel_floats(int channels) { return kBlocks * pixel_floats(channels) + background_floats(channels); }

// The inputs of the pixels of one tile, in separate packs.
struct TilePixels {
  float* blocks;
  int floats, channels, track;
  LG_INLINE float* background() const { return block(kBlocks); }
  LG_INLINE float* block(int b) const { return blocks + static_cast<std::size_t>(b) * floats; }
  LG_INLINE float* upstream(float* block) const { return block + kPixelFields * kLanes; }
};

// The part of the film that a block covers.
struct FilmBlock {
  int columns, rows;  // Both are at least 1.
  int64_t first;      // y * width + x of the first pixel
  int64_t width;

  LG_INLINE bool whole() const { return columns == 4 && rows == 4; }
  LG_INLINE int64_t index(int lane) const { return first + lane / 4 * width + lane % 4; }
  LG_INLINE bool has(int lane) const { return lane % 4 < columns && lane / 4 < rows; }
  LG_INLINE MaskPack mask() const {
    return (lane_x() < Pack(static_cast<float>(columns))) & (lane_y() < Pack(static_cast<float>(rows)));
  }
  // Reads the `kCount` values of each pixel from an image, pixel by pixel; 0 off the film.
  template <int kCount, class T>
  LG_INLINE void read_rows(const T* image, float* values) const {
    static_assert(sizeof(T) == sizeof(float));
    if (whole()) {
      for (int y = 0; y < 4; ++y) {
        __builtin_memcpy(values + 4 * kCount * y, image + kCount * (first + y * width), sizeof(float) * 4 * kCount);
      }
      return;
    }
    __builtin_memset(values, 0, sizeof(float) * kCount * kLanes);
    for (int y = 0; y < rows; ++y) {
      __builtin_memcpy(values + 4 * kCount * y, image + kCount * (first + y * width), sizeof(float) * columns * kCount);
    }
  }
  template <class T>
  LG_INLINE Pack read(const T* image) const {
    alignas(64) float lanes[kLanes];
    read_rows<1>(image, lanes);
    return Pack::load(lanes);
  }
  LG_INLINE void read(const float* image, Pack& a, Pack& b, Pack& c) const {
    alignas(64) float triples[3 * kLanes];
    read_rows<3>(image, triples);
    deinterleave_3(triples, a, b, c);
  }
  // Reads value `slot` of each pixel's `count` values from the image `from`, as bytes.
  LG_INLINE void read_slot(const void* from, int64_t count, int64_t slot, float* lanes) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!has(lane)) continue;
      __builtin_memcpy(lanes + lane, static_cast<const char*>(from) + sizeof(float) * (index(lane) * count + slot),
                       sizeof(float));
    }
  }
};

// Loads the channels of an image into consecutive packs.
LG_INLINE void load_channels(const FilmBlock& film, const float* image, int channels, float* to) {
  if (channels == 3) {
    Pack a, b, c;
    film.read(image, a, b, c);
    a.store(to);
    b.store(to + kLanes);
    c.store(to + 2 * kLanes);
    return;
  }
  for (int c = 0; c < channels; ++c) film.read_slot(image, channels, c, to + c * kLanes);
}

// Prefetches what load_pixels reads for the block at (x0, y0): its rows are far apart in the images, so that the
// processor does not do it.
LG_INLINE void request_pixels(const Camera& camera, const Upstream& up, int channels, int x0, int y0) {
  if (x0 + 4 > camera.width) return;
  for (int y = y0; y < y0 + 4 && y < camera.height; ++y) {
    // A row of a block begins in the line of memory in which the row of the block to its left ends.
    const int64_t last = static_cast<int64_t>(y) * camera.width + x0 + 3;
    __builtin_prefetch(up.color + last * channels);
    if (up.d_color != nullptr) __builtin_prefetch(up.d_color + last * channels);
    __builtin_prefetch(up.blend + last * 3);
    __builtin_prefetch(up.stop + last);
  }
}

// Sum of the upstream gradients times the image over the channels.
LG_INLINE Pack upstream_image(const Upstream& up, const TilePixels& pixels, float* block, const FilmBlock& film) {
  const auto upstream = [&](int c) { return Pack::load(pixels.upstream(block) + c * kLanes); };
  Pack sum = 0.0f;
  if (pixels.channels == 3) {
    Pack a, b, c;
    film.read(up.color, a, b, c);
    return sum + upstream(0) * a + upstream(1) * b + upstream(2) * c;
  }
  for (int c = 0; c < pixels.channels; ++c) {
    alignas(64) float lanes[kLanes] = {};
    film.read_slot(up.color, pixels.channels, c, lanes);
    sum = sum + upstream(c) * Pack::load(lanes);
  }
  return sum;
}

// Loads the inputs of a block's pixels, and returns 1 / D; the block must be zero before.
LG_INLINE Pack load_pixels(const Upstream& up, const TilePixels& pixels, float* block, const FilmBlock& film) {
  const int channels = pixels.channels;
  const auto put = [&](int field, Pack value) { value.store(block + field * kLanes); };
  if (up.d_color != nullptr) load_channels(film, up.d_color, channels, pixels.upstream(block));
  Pack high, low, denominator;
  film.read(up.blend, high, low, denominator);
  put(kUpstreamImage, upstream_image(up, pixels, block, film));
  put(kPixelMaximum, high);
  put(kPixelLow, low);
  put(kLast, film.read(up.stop));
  if (up.d_depth != nullptr) {
    film.read_slot(up.ids, pixels.track, 0, block + kClosest * kLanes);
    put(kUpstreamDepth, film.read(up.d_depth));
  }
  return zero_unless(film.mask(), Pack(1.0f) / denominator);
}

// The background's sums over the pixels of a thread.
struct BackgroundSums {
  double* color;      // [K] dL/d background
  double exponent;    // Sum of dL/de0 (e0 - M)
  double exponent_m;  // Sum of dL/de0 M
};

LG_INLINE void store_lanes(float* to, int value) { from_bits(IntPack(value)).store(to); }

// Adds the gradients of the background, which is blended as one more candidate, with exponent e0 and weight exp(e0 -
// M). Also converts the upstream gradients for the pairs, which all divide them by D: an upstream gradient of alpha
// acts like a channel in which spheres are 1 and the background 0.
inline void add_background(const ExactView& view, const Scene& scene, const Upstream& up, const TilePixels& pixels,
                           float* block, const FilmBlock& film, Pack inverse) {
  const Pack high = Pack::load(block + kPixelMaximum * kLanes), low = Pack::load(block + kPixelLow * kLanes);
  const Pack difference = (Pack(view.background_high) - high) + (Pack(view.background_low) - low);
  const Pack share = exact_background(view, high, low) * inverse;
  const Pack d_alpha = up.d_alpha != nullptr ? film.read(up.d_alpha) : Pack(0.0f);
  const Pack image = Pack::load(block + kUpstreamImage * kLanes) - d_alpha * share;
  (-(image * inverse)).store(block + kUpstreamImage * kLanes);
  const auto add = [&](int field, Pack value) {
    float* const to = pixels.background() + field * kLanes;
    (Pack::load(to) + value).store(to);
  };
  Pack d_color_background = 0.0f;
  for (int c = 0; c < pixels.channels; ++c) {
    const Pack g = Pack::load(pixels.upstream(block) + c * kLanes);
    add(c, g * share);
    d_color_background = d_color_background + g * Pack(scene.background[c]);
    (g * inverse).store(pixels.upstream(block) + c * kLanes);
  }
  const Pack d_exponent = share * ((d_color_background - image) - d_alpha);
  add(pixels.channels, d_exponent * difference);
  add(pixels.channels + 1, d_exponent * (high + low));
}

LG_INLINE void add_tile(const TilePixels& pixels, BackgroundSums& sums) {
  const auto total = [&](int field) {
    return static_cast<double>(sum(Pack::load(pixels.background() + field * kLanes)));
  };
  for (int c = 0; c < pixels.channels; ++c) sums.color[c] += total(c);
  sums.exponent += total(pixels.channels);
  sums.exponent_m += total(pixels.channels + 1);
}

LG_INLINE ExactRay<Pack> load_ray(const float* block) {
  const auto get = [&](int i) { return Pack::load(block + i * kLanes); };
  return {get(0), get(1), get(2), get(3), get(4), get(5)};
}

template <bool kOrthogonal>
void load_tile(const Camera& camera, const ExactView& view, const Scene& scene, const Upstream& up,
               const TilePixels& pixels, int left, int top, BackgroundSums& sums) {
  const auto put = [](float* block, int field, Pack value) { value.store(block + field * kLanes); };
  __builtin_memset(pixels.background(), 0, sizeof(float) * background_floats(pixels.channels));
  for (int b = 0; b < kBlocks; ++b) {
    float* block = pixels.block(b);
    const int x0 = left + b % kBlocksX * 4, y0 = top + b / kBlocksX * 4;
    __builtin_memset(block, 0, sizeof(float) * pixels.floats);
    const Pack px = lane_x() + Pack(static_cast<float>(x0)), py = lane_y() + Pack(static_cast<float>(y0));
    const ExactRay<Pack> ray = exact_ray<Pack, kOrthogonal>(view, px, py);
    const Pack parts[6] = {ray.x, ray.y, ray.u, ray.v, ray.inverse_square, ray.inverse_length};
    for (int i = 0; i < 6; ++i) put(block, i, parts[i]);
    store_lanes(block + kClosest * kLanes, -1);
    const int columns = camera.width - x0 < 4 ? camera.width - x0 : 4;
    const int rows = camera.height - y0 < 4 ? camera.height - y0 : 4;
    if (columns <= 0 || rows <= 0) continue;
    // The block below; from the last row, the block at the top of the next tile.
    const int next = (b + kBlocksX) % kBlocks;
    request_pixels(camera, up, pixels.channels, left + next % kBlocksX * 4 + (next < b ? kTileWidth : 0),
                   top + next / kBlocksX * 4);
    const FilmBlock film{columns, rows, static_cast<int64_t>(y0) * camera.width + x0, camera.width};
    const Pack inverse = load_pixels(up, pixels, block, film);
    add_background(view, scene, up, pixels, block, film, inverse);
  }
  add_tile(pixels, sums);
}

LG_END
