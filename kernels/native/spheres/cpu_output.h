// From a block's state to the output images.
#pragma once

#include "spheres/cpu_draw.h"

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

struct PixelState {
  const float* state;
  int lane;
  LG_INLINE float get(int field) const { return state[field * kLanes + lane]; }
  LG_INLINE int get_int(int field) const { return bits(state[field * kLanes + lane]); }
};

inline void write_info(const PixelState& pixel, int channels, int track, float maximum, float* info) {
  info[0] = maximum;
  info[1] = pixel.get(kDenominator);
  info[2] = pixel.get(kMaxNear);
  const int depths = kBlockFields + channels;
  // Ids are moved as integers: as floats they are denormals and NaN.
  int* words = reinterpret_cast<int*>(info);
  for (int t = 0; t < track; ++t) {
    const float depth = pixel.get(depths + t);
    words[3 + 2 * t] = pixel.get_int(depths + track + t);
    info[4 + 2 * t] = depth < kNoDepth ? depth : -1.0f;
  }
}

template <bool kExact>
void write_pixel(const Camera& camera, const DrawArguments& arguments, const Outputs& out, const PixelState& pixel,
                 int64_t index) {
  const int channels = arguments.channels, track = arguments.track;
  const float denominator = pixel.get(kDenominator), maximum = pixel.get(kMaximum), low = pixel.get(kMaximumLow);
  const float inverse = 1.0f / (kExact ? denominator : max(denominator, kFeps));
  if (out.color != nullptr) {
    for (int c = 0; c < channels; ++c) out.color[index * channels + c] = pixel.get(kBlockFields + c) * inverse;
  }
  if (out.alpha != nullptr) {
    float background = low;
    if constexpr (kExact) {
      background = exact_background(exact_view(camera, *arguments.settings), maximum, low);
    }
    out.alpha[index] = 1.0f - background * inverse;
  }
  if (out.info != nullptr) {
    write_info(pixel, channels, track, kExact ? maximum + low : maximum, out.info + index * (3 + 2 * track));
  }
  const int depths = kBlockFields + channels;
  if (out.depth != nullptr) {
    const float depth = pixel.get(depths);
    out.depth[index] = depth < kNoDepth ? depth : -1.0f;
  }
  if (out.ids != nullptr) {
    for (int t = 0; t < track; ++t) out.ids[index * track + t] = pixel.get_int(depths + track + t);
  }
  if (out.hits != nullptr) out.hits[index] = pixel.get_int(kHits);
  if (out.blend != nullptr) {
    out.blend[index * 3] = maximum;
    out.blend[index * 3 + 1] = low;
    out.blend[index * 3 + 2] = denominator;
  }
  if (out.stop != nullptr) out.stop[index] = pixel.get_int(kStop);
}

template <bool kExact>
void write_weights(const Camera& camera, const DrawArguments& arguments, const Prepared& prepared, const Outputs& out,
                   const PixelState& pixel, int x, int y) {
  const int track = arguments.track, ids = kBlockFields + arguments.channels + track;
  float* weights = out.weights + (static_cast<int64_t>(y) * camera.width + x) * track;
  for (int t = 0; t < track; ++t) {
    const int id = pixel.get_int(ids + t);
    weights[t] = id < 0 ? 0.0f
                        : tracked_weight<kExact>(camera, *arguments.settings,
                                                 prepared.records + static_cast<int64_t>(id) * kRecordFloats,
                                                 static_cast<float>(x), static_cast<float>(y), pixel.get(kMaximum),
                                                 pixel.get(kMaximumLow), pixel.get(kDenominator));
  }
}

template <bool kExact>
void write_block(const Camera& camera, const DrawArguments& arguments, const Prepared& prepared, const Outputs& out,
                 const float* state, int x0, int y0) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int x = x0 + lane % 4, y = y0 + lane / 4;
    if (x >= camera.width || y >= camera.height) continue;
    const PixelState pixel{state, lane};
    write_pixel<kExact>(camera, arguments, out, pixel, static_cast<int64_t>(y) * camera.width + x);
    if (out.weights != nullptr) write_weights<kExact>(camera, arguments, prepared, out, pixel, x, y);
  }
}

LG_END
