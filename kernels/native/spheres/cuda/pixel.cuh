// The state of a pixel while its tile's spheres are blended, and its update by one sphere.
#pragma once

#include "spheres/cuda/prepare.cuh"
#include "spheres/math/blend.h"

namespace lumigrad::spheres {

inline constexpr float kNoTrackedDepth = 3.4e38f;

// The closest spheres, ascending by depth; of equal depths the sphere inserted last comes first (spec 5.3). The first n
// of kRoom slots are used. Few slots are kept in registers, which requires indices known at compile
// time.
template <int kRoom>
struct CudaTracker {
  static constexpr bool kInRegisters = kRoom <= 8;
  static constexpr int kUnroll = kInRegisters ? kRoom : 1;
  float depths[kRoom];
  int ids[kRoom];
  int wanted;

  __device__ explicit CudaTracker(int n) : wanted(n) {
#pragma unroll kUnroll
    for (int i = 0; i < kRoom; ++i) {
      if (!kInRegisters && i >= wanted) break;
      depths[i] = kNoTrackedDepth;
      ids[i] = -1;
    }
  }

  __device__ void insert(float depth, int id) {
    if (!(depth <= depths[kInRegisters ? kRoom - 1 : wanted - 1])) return;
#pragma unroll kUnroll
    for (int i = 0; i < kRoom; ++i) {
      if (!kInRegisters && i >= wanted) break;
      const float here = depths[i];
      const int here_id = ids[i];
      const bool swap = depth <= here;
      depths[i] = swap ? depth : here;
      ids[i] = swap ? id : here_id;
      depth = swap ? here : depth;
      id = swap ? here_id : id;
    }
  }

  // Calls visit(i, id, depth) for the first `wanted` slots, with -1 and -1 for an empty one.
  template <class Visit>
  __device__ void each(const Visit& visit) const {
#pragma unroll kUnroll
    for (int i = 0; i < kRoom; ++i) {
      // An early exit would prevent unrolling.
      if (!kInRegisters && i >= wanted) break;
      if (i < wanted) visit(i, ids[i], depths[i] < kNoTrackedDepth ? depths[i] : -1.0f);
    }
  }
};

// The colour that is blended: in registers for 3 channels, else in the output image, to which only this thread writes.
template <int kChannels>
struct CudaColor {
  float value[3];

  __device__ CudaColor(const Scene& scene, float*) {
    for (int c = 0; c < 3; ++c) value[c] = scene.background[c];
  }
  template <class Blend>
  __device__ void blend(const Scene&, const float* record, unsigned, const Blend& blended) {
#pragma unroll
    for (int c = 0; c < 3; ++c) value[c] = blended(value[c], record[compat_record::kColor + c]);
  }
  __device__ void write(const Scene&, float* image, float inverse) const {
    for (int c = 0; c < 3; ++c) image[c] = value[c] * inverse;
  }
};

template <>
struct CudaColor<0> {
  float* image;  // Null if colour is not requested.

  __device__ CudaColor(const Scene& scene, float* to) : image(to) {
    for (int c = 0; image != nullptr && c < scene.channels; ++c) image[c] = scene.background[c];
  }
  template <class Blend>
  __device__ void blend(const Scene& scene, const float*, unsigned id, const Blend& blended) {
    const float* color = scene.colors + static_cast<int64_t>(id) * scene.channels;
    for (int c = 0; image != nullptr && c < scene.channels; ++c) image[c] = blended(image[c], color[c]);
  }
  __device__ void write(const Scene& scene, float* to, float inverse) const {
    for (int c = 0; c < scene.channels; ++c) to[c] *= inverse;
  }
};

template <int kChannels, int kRoom>
struct CudaPixel {
  float maximum;  // M; exact: its high part.
  float low;      // Exact: the low part of M. Compat: the remaining weight of the background.
  float denominator = 1.0f;
  float max_near = -1.0f;
  int hits = 0;
  int loaded = 0;         // Compat: candidates since the last check.
  int stop = 0x7FFFFFFF;  // Exact: ranks below this were visited.
  bool active;
  CudaColor<kChannels> color;
  CudaTracker<kRoom> tracker;

  __device__ CudaPixel(float m, float l, const Scene& scene, const Settings& settings, float* image, bool on_film)
      : maximum(m), low(l), active(on_film), color(scene, image), tracker(settings.n_track) {}

  __device__ void count_hit(unsigned id, float depth, float near) {
    max_near = near;
    ++hits;
    tracker.insert(depth, static_cast<int>(id));
  }
};

// Blends a candidate of the pixel (spec 5.1), and after every 65th checks whether the pixel ends (spec 5.2).
template <bool kOrthogonal, int kChannels, int kRoom>
__device__ inline void draw_compat(CudaPixel<kChannels, kRoom>& pixel, const Scene& scene, const Settings& settings,
                                   const CompatView& view, const CompatRay<float>& ray, const float* record,
                                   unsigned id) {
  const CompatOffset<float> offset = compat_offset<float, kOrthogonal>(record, ray);
  if (compat_hit<float, kOrthogonal>(record, ray, offset)) {
    const CompatGeometry<float> g = compat_geometry<float, kOrthogonal>(record, ray, view, offset);
    const auto joining = compat_join<float>(record, g.closeness, g.exponent, pixel.maximum);
    pixel.denominator = pixel.denominator * joining.scale + joining.weight;
    pixel.low *= joining.scale;
    if (joining.higher) pixel.maximum = g.exponent;
    pixel.color.blend(scene, record, id,
                      [&](float old, float value) { return joining.weight * value + old * joining.scale; });
    pixel.count_hit(id, g.depth, record[compat_record::kNear]);
  }
  if (++pixel.loaded <= 64) return;
  pixel.loaded = 0;
  if (view.may_stop && pixel.hits > 0 &&
      record[compat_record::kNear] > compat_threshold(pixel.denominator, pixel.maximum, view)) {
    pixel.active = false;
  }
  if (static_cast<uint32_t>(pixel.hits) >= settings.max_hits) pixel.active = false;
}

// Blends a candidate of the pixel; a hit without weight must not raise the maximum.
template <bool kOrthogonal, int kChannels, int kRoom>
__device__ inline void draw_exact(CudaPixel<kChannels, kRoom>& pixel, const Scene& scene, const Settings& settings,
                                  const CudaExactView& view, const ExactRay<float>& ray, const float* record,
                                  unsigned id, unsigned rank) {
  if (!exact_hit<float, kOrthogonal>(record, ray, view)) return;
  const ExactGeometry<float> g = exact_geometry<float, kOrthogonal>(record, ray, view, true);
  if (!(g.closeness > 0.0f)) return;
  const auto joining = exact_join<float>(record, g.closeness, g.low, pixel.maximum, pixel.low);
  pixel.denominator = fma(pixel.denominator, joining.scale, joining.weight);
  if (joining.higher) {
    pixel.maximum = record[exact_record::kHigh];
    pixel.low = g.low;
  }
  pixel.color.blend(scene, record, id,
                    [&](float old, float value) { return fma(joining.weight, value, old * joining.scale); });
  const float depth = exact_depth(record, g);
  pixel.count_hit(id, depth, exact_near(record));
  if (static_cast<uint32_t>(pixel.hits) < settings.max_hits) return;
  pixel.stop = static_cast<int>(rank) + 1;
  pixel.active = false;
}

}  // namespace lumigrad::spheres
