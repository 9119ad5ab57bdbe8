// Writes a block's state to the output images.
#pragma once

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

// The pixels of a block that lie on the film.
struct BlockPixels {
  int count = 0;
  int lanes[kLanes];
  int64_t indices[kLanes];  // y * width + x

  BlockPixels(const Camera& camera, int x0, int y0) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int x = x0 + lane % 4, y = y0 + lane / 4;
      if (x >= camera.width || y >= camera.height) continue;
      lanes[count] = lane;
      indices[count++] = static_cast<int64_t>(y) * camera.width + x;
    }
  }

  // Value `slot` of the `width` that a pixel has in the image `to`. Moved as bytes: as floats, ids are denormals and
  // NaN.
  LG_INLINE void write(void* to, int64_t width, int64_t slot, const float* values) const {
    char* bytes = static_cast<char*>(to);
    for (int i = 0; i < count; ++i) {
      __builtin_memcpy(bytes + sizeof(float) * (indices[i] * width + slot), values + lanes[i], sizeof(float));
    }
  }
  LG_INLINE void write(void* to, int64_t width, int64_t slot, Pack values) const {
    alignas(64) float lane_values[kLanes];
    values.store(lane_values);
    write(to, width, slot, lane_values);
  }
};

LG_INLINE Pack tracked_depth(const float* state) {
  const Pack depth = Pack::load(state);
  return select(depth < Pack(kNoDepth), depth, Pack(-1.0f));
}

inline void write_tracker(const DrawArguments& arguments, const Outputs& out, const BlockPixels& pixels,
                          const float* state, Pack maximum) {
  const int track = arguments.track, width = 3 + 2 * track;
  const float* depths = state + (kBlockFields + arguments.channels) * kLanes;
  const float* ids = depths + track * kLanes;
  if (out.info != nullptr) {
    pixels.write(out.info, width, 0, maximum);
    pixels.write(out.info, width, 1, state + kDenominator * kLanes);
    pixels.write(out.info, width, 2, state + kMaxNear * kLanes);
    for (int t = 0; t < track; ++t) {
      pixels.write(out.info, width, 3 + 2 * t, ids + t * kLanes);
      pixels.write(out.info, width, 4 + 2 * t, tracked_depth(depths + t * kLanes));
    }
  }
  if (out.depth != nullptr) pixels.write(out.depth, 1, 0, tracked_depth(depths));
  for (int t = 0; out.ids != nullptr && t < track; ++t) pixels.write(out.ids, track, t, ids + t * kLanes);
}

template <bool kExact>
void write_weights(const Camera& camera, const DrawArguments& arguments, const Prepared& prepared, const Outputs& out,
                   const BlockPixels& pixels, const float* state) {
  const int track = arguments.track;
  const float* ids = state + (kBlockFields + arguments.channels + track) * kLanes;
  for (int i = 0; i < pixels.count; ++i) {
    const int lane = pixels.lanes[i];
    const auto get = [&](int field) { return state[field * kLanes + lane]; };
    for (int t = 0; t < track; ++t) {
      const int id = bits(ids[t * kLanes + lane]);
      float* to = out.weights + pixels.indices[i] * track + t;
      *to = id < 0 ? 0.0f
                   : tracked_weight<kExact>(camera, *arguments.settings,
                                            prepared.records + static_cast<int64_t>(id) * kRecordFloats,
                                            static_cast<float>(pixels.indices[i] % camera.width),
                                            static_cast<float>(pixels.indices[i] / camera.width), get(kMaximum),
                                            get(kMaximumLow), get(kDenominator));
    }
  }
}

template <bool kExact>
void write_block(const Camera& camera, const DrawArguments& arguments, const Prepared& prepared, const Outputs& out,
                 const float* state, int x0, int y0) {
  const BlockPixels pixels(camera, x0, y0);
  const Pack maximum = Pack::load(state + kMaximum * kLanes), low = Pack::load(state + kMaximumLow * kLanes);
  const Pack denominator = Pack::load(state + kDenominator * kLanes);
  const Pack inverse = Pack(1.0f) / (kExact ? denominator : max(denominator, Pack(kFeps)));
  for (int c = 0; out.color != nullptr && c < arguments.channels; ++c) {
    pixels.write(out.color, arguments.channels, c, Pack::load(state + (kBlockFields + c) * kLanes) * inverse);
  }
  if (out.alpha != nullptr) {
    Pack background = low;
    if constexpr (kExact) background = exact_background(exact_view(camera, *arguments.settings), maximum, low);
    pixels.write(out.alpha, 1, 0, Pack(1.0f) - background * inverse);
  }
  if (arguments.track > 0) write_tracker(arguments, out, pixels, state, kExact ? maximum + low : maximum);
  if (out.hits != nullptr) pixels.write(out.hits, 1, 0, state + kHits * kLanes);
  if (out.blend != nullptr) {
    pixels.write(out.blend, 3, 0, maximum);
    pixels.write(out.blend, 3, 1, low);
    pixels.write(out.blend, 3, 2, denominator);
  }
  if (out.stop != nullptr) pixels.write(out.stop, 1, 0, state + kStop * kLanes);
  if (out.weights != nullptr) write_weights<kExact>(camera, arguments, prepared, out, pixels, state);
}

LG_END
