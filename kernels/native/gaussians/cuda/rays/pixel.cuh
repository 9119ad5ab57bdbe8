// A Gaussian of a batch at the ray of a pixel.
#pragma once

#include "gaussians/cuda/pixel.cuh"
#include "gaussians/cuda/rays/field.cuh"

namespace lumigrad::gaussians {

// Features that a pixel keeps in registers; if there are more, the tile goes through its list once for each chunk.
inline constexpr int kFewRayFeatures = 4, kManyRayFeatures = 8;

// What a thread sees.
struct RayPixel {
  Ray ray;
  int x, y;
  bool rectangles;  // See Settings.

  __device__ RayPixel(const CudaCall& call, const TilePixel& place, const float* rays)
      : ray(load_ray(rays, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x))),
        x(place.x),
        y(place.y),
        rectangles(call.settings.rectangles != 0) {}
};

struct RayHit {
  UnitRay<float> ray;
  Closest<float> at;
  float power;  // log2 of alpha.
  bool counts;

  __device__ RayHit(const float* record, const RayPixel& pixel, const Limits& limits)
      : ray(unit_ray<false>(record, pixel.ray.origin, pixel.ray.direction)), at(closest_of(ray)) {
    power = log2_alpha(at, record[ray_record::kLog2Opacity]);
    counts = power >= limits.log2_alpha_min && at.back <= 0.0f &&
             (!pixel.rectangles || range_of(record + kAlongRays).holds(pixel.x, pixel.y));
  }
};

// The third axis of a Gaussian, turned against the ray.
__device__ inline Triple<float> normal_of(const float* record, const RayHit& hit) {
  const float third = record[ray_record::kThirdScale], factor = hit.ray.direction.z > 0.0f ? -third : third;
  return {record[6] * factor, record[7] * factor, record[8] * factor};
}

// Calls run(features, geometry), compile-time constants: how many features a pixel keeps at a time, and whether
// distances or normals are drawn.
template <class Run>
void with_ray_features(const Features& features, const Run& run) {
  const auto with = [&](auto count) {
    if (features.hit_distance || features.normals) {
      run(count, std::true_type());
    } else {
      run(count, std::false_type());
    }
  };
  if (features.total() <= kFewRayFeatures) return with(std::integral_constant<int, kFewRayFeatures>());
  with(std::integral_constant<int, kManyRayFeatures>());
}

}  // namespace lumigrad::gaussians
