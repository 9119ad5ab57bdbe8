// A Gaussian of a batch at the ray of a pixel.
#pragma once

#include "gaussians/cuda/pixel.cuh"
#include "gaussians/cuda/rays/field.cuh"

namespace lumigrad::gaussians {

// The features that a pixel keeps in registers; if there are more, the tile goes through its list once per chunk.
inline constexpr int kRayFeatures = 4;

// The view of a thread. Slices move only if `kMotion`.
template <bool kMotion>
struct RayPixel {
  const CudaCall& call;
  Ray ray;
  int view, x, y;
  float time;
  bool rectangles;  // See Settings; false for lidars.

  __device__ RayPixel(const CudaCall& of, const TilePixel& place, const float* rays)
      : call(of),
        ray(load_ray(rays, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x))),
        view(place.view),
        x(place.x),
        y(place.y),
        time(kMotion ? pixel_time(of, place) : 0.0f),
        rectangles(of.settings.rectangles != 0 && of.scene.sensors[place.view].lens != SensorLens::lidar) {}

  // The motion of a Gaussian's slice; null if it does not move.
  __device__ const SliceMotion<float>* motion(const float* record) const {
    if constexpr (!kMotion) return nullptr;
    return motion_of(call, view, record[ray_record::kMotion]);
  }
  // The ray as a Gaussian of a slice with this motion sees it.
  __device__ UnitRay<float> seen(const SliceMotion<float>* motion) const {
    if (motion == nullptr) return {ray.origin, ray.direction};
    return unmoved(*motion, time, ray.origin, ray.direction);
  }
};

struct RayHit {
  const SliceMotion<float>* motion;  // Null if the slice does not move.
  UnitRay<float> ray;
  Closest<float> at;
  float power;  // log2 of alpha.
  bool counts;

  template <bool kMotion>
  __device__ RayHit(const float* record, const RayPixel<kMotion>& pixel, const Limits& limits)
      : motion(pixel.motion(record)) {
    const UnitRay<float> seen = pixel.seen(motion);
    ray = unit_ray<false>(record, seen.origin, seen.direction);
    at = closest_of(ray);
    power = log2_alpha(at, record[ray_record::kLog2Opacity]);
    counts = power >= limits.log2_alpha_min && at.back <= 0.0f &&
             (!pixel.rectangles || range_of(record + kRangeAtEnd).holds(pixel.x, pixel.y));
  }
};

// The third axis of a Gaussian, turned against the ray; in a moving slice, the axis at the start.
__device__ inline Triple<float> normal_of(const float* record, const RayHit& hit) {
  return scaled(third_axis(record), hit.ray.direction.z > 0.0f ? -1.0f : 1.0f);
}

// Calls run(flag) with a compile-time flag.
template <class Run>
void with_flag(bool flag, const Run& run) {
  flag ? run(std::true_type()) : run(std::false_type());
}

// Calls run(geometry), a compile-time constant: whether distances or normals are drawn.
template <class Run>
void with_geometry(const Features& features, const Run& run) {
  with_flag(features.hit_distance || features.normals, run);
}

}  // namespace lumigrad::gaussians
