// The inputs of the backward pass for the pixels of a tile, block by block.
#pragma once

#include "spheres/cpu/block.h"
#include "spheres/math/blend.h"

LG_BEGIN_ENGINE(spheres)

// Packs of a block, in order; then K upstream gradients, K colours (compat) and T tracked ids.
enum PixelField {
  kRay0,
  kRay1,
  kRay2,
  kRay3,
  kRay4,
  kRay5,
  kPixelMaximum,
  kPixelLow,
  kPixelDenominator,
  kInverse,
  kInverseSquare,
  kUpstreamImage,  // Exact: sum of G * I and the alpha's share
  kLast,           // int; exact: entries of the tile's list that the pixel visited
  kClosest,        // int; exact: the sphere that gave the depth
  kUpstreamDepth,
  kSum0,
  kSum1,
  kSum2,  // Sums over the pairs of the pixel, for the camera.
  kPixelFields
};

inline int pixel_floats(int channels, int track) { return (kPixelFields + 2 * channels + track) * kLanes; }

// The inputs of the pixels of one tile, in separate packs.
struct TilePixels {
  float* blocks;
  int floats, channels, track;
  LG_INLINE float* block(int b) const { return blocks + static_cast<std::size_t>(b) * floats; }
  LG_INLINE float* upstream(float* block) const { return block + kPixelFields * kLanes; }
  LG_INLINE float* image(float* block) const { return block + (kPixelFields + channels) * kLanes; }
  LG_INLINE float* ids(float* block) const { return block + (kPixelFields + 2 * channels) * kLanes; }
};

template <bool kExact>
LG_INLINE void load_pixel(const Upstream& up, const TilePixels& pixels, float* block, int lane, int64_t index) {
  const int channels = pixels.channels, track = pixels.track;
  float image = 0.0f;
  float* to = pixels.upstream(block) + lane;
  for (int c = 0; c < channels; ++c) {
    const float g = up.d_color != nullptr ? up.d_color[index * channels + c] : 0.0f;
    const float color = up.color[index * channels + c];
    to[c * kLanes] = g;
    if constexpr (kExact) {
      image += g * color;
    } else {
      pixels.image(block)[c * kLanes + lane] = color;
    }
  }
  const auto put = [&](int field, float value) { block[field * kLanes + lane] = value; };
  if constexpr (kExact) {
    const float denominator = up.blend[3 * index + 2];
    put(kUpstreamImage, image);
    put(kPixelMaximum, up.blend[3 * index]);
    put(kPixelLow, up.blend[3 * index + 1]);
    put(kPixelDenominator, denominator);
    put(kInverse, 1.0f / denominator);
    put(kLast, from_bits(up.stop[index]));
    if (up.d_depth != nullptr) {
      put(kClosest, from_bits(up.ids[index * track]));
      put(kUpstreamDepth, up.d_depth[index]);
    }
  } else {
    const float* info = up.info + index * (3 + 2 * track);
    const float denominator = info[1];
    put(kPixelMaximum, info[0]);
    put(kPixelDenominator, denominator);
    put(kInverse, 1.0f / max(denominator, kFeps));
    put(kInverseSquare, 1.0f / max(denominator * denominator, kFeps));
    const int* words = reinterpret_cast<const int*>(info);
    int* ids = reinterpret_cast<int*>(pixels.ids(block));
    for (int t = 0; t < track; ++t) ids[t * kLanes + lane] = words[3 + 2 * t];
  }
}

// Exact: the sums of the background over the pixels of a thread.
struct BackgroundSums {
  double* color;      // [K] dL/d background
  double exponent;    // Sum of dL/de0 (e0 - M)
  double exponent_m;  // Sum of dL/de0 M
};

LG_INLINE void store_lanes(float* to, int value) { from_bits(IntPack(value)).store(to); }

// The background is blended as one more candidate, of exponent e0 and weight exp(e0 - M). Also converts kUpstreamImage
// for the pairs: an upstream gradient of alpha acts like a channel in which spheres are 1 and the background 0.
inline void add_background(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& up,
                           const TilePixels& pixels, float* block, int x0, int y0, BackgroundSums& sums) {
  const ExactView view = exact_view(camera, settings);
  const Pack high = Pack::load(block + kPixelMaximum * kLanes), low = Pack::load(block + kPixelLow * kLanes);
  const Pack difference = (Pack(view.background_high) - high) + (Pack(view.background_low) - low);
  const Pack share = exact_background(view, high, low) * Pack::load(block + kInverse * kLanes);
  alignas(64) float alpha[kLanes] = {};
  for (int lane = 0; up.d_alpha != nullptr && lane < kLanes; ++lane) {
    const int x = x0 + lane % 4, y = y0 + lane / 4;
    if (x < camera.width && y < camera.height) alpha[lane] = up.d_alpha[static_cast<int64_t>(y) * camera.width + x];
  }
  const Pack d_alpha = Pack::load(alpha);
  const Pack image = Pack::load(block + kUpstreamImage * kLanes) - d_alpha * share;
  image.store(block + kUpstreamImage * kLanes);
  Pack d_color_background = 0.0f;
  for (int c = 0; c < pixels.channels; ++c) {
    const Pack g = Pack::load(pixels.upstream(block) + c * kLanes);
    sums.color[c] += static_cast<double>(sum(g * share));
    d_color_background = d_color_background + g * Pack(scene.background[c]);
  }
  const Pack d_exponent = share * ((d_color_background - image) - d_alpha);
  sums.exponent += static_cast<double>(sum(d_exponent * difference));
  sums.exponent_m += static_cast<double>(sum(d_exponent * (high + low)));
}

template <bool kExact, bool kOrthogonal>
LG_INLINE auto load_ray(const float* block) {
  const auto get = [&](int i) { return Pack::load(block + i * kLanes); };
  if constexpr (kExact) {
    return ExactRay<Pack>{get(0), get(1), get(2), get(3), get(4), get(5)};
  } else {
    return CompatRay<Pack>{get(0), get(1), get(2), get(3), get(4)};
  }
}

template <bool kExact, bool kOrthogonal>
void load_tile(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& up,
               const TilePixels& pixels, int left, int top, BackgroundSums& sums) {
  const auto put = [](float* block, int field, Pack value) { value.store(block + field * kLanes); };
  const ExactView view = exact_view(camera, settings);
  for (int b = 0; b < kBlocks; ++b) {
    float* block = pixels.block(b);
    const int x0 = left + b % kBlocksX * 4, y0 = top + b / kBlocksX * 4;
    __builtin_memset(block, 0, sizeof(float) * pixels.floats);
    const Pack px = lane_x() + Pack(static_cast<float>(x0)), py = lane_y() + Pack(static_cast<float>(y0));
    if constexpr (kExact) {
      const ExactRay<Pack> ray = exact_ray<Pack, kOrthogonal>(view, px, py);
      const Pack parts[6] = {ray.x, ray.y, ray.u, ray.v, ray.inverse_square, ray.inverse_length};
      for (int i = 0; i < 6; ++i) put(block, i, parts[i]);
      store_lanes(block + kClosest * kLanes, -1);
    } else {
      const CompatRay<Pack> ray = compat_ray<Pack, kOrthogonal>(camera, px + Pack(static_cast<float>(camera.border_x)),
                                                                py + Pack(static_cast<float>(camera.border_y)));
      const Pack parts[5] = {ray.x, ray.y, ray.z, ray.w, ray.inverse_length};
      for (int i = 0; i < 5; ++i) put(block, i, parts[i]);
      for (int t = 0; t < pixels.track; ++t) store_lanes(pixels.ids(block) + t * kLanes, -1);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int x = x0 + lane % 4, y = y0 + lane / 4;
      if (x < camera.width && y < camera.height) {
        load_pixel<kExact>(up, pixels, block, lane, static_cast<int64_t>(y) * camera.width + x);
      }
    }
    if constexpr (kExact) add_background(camera, settings, scene, up, pixels, block, x0, y0, sums);
  }
}

LG_END
