// One Gaussian of the scene, as the formulas want it.
#pragma once

#include "gaussians/cuda_records.cuh"
#include "gaussians/math_project.h"

namespace lumigrad::gaussians {

template <bool kCovariance>
__device__ inline Gaussian<float> gaussian_of(const Scene& scene, int64_t index) {
  Gaussian<float> g{};
  g.mean = mean_of(scene, index);
  if constexpr (kCovariance) {
    const float* c = scene.covariances + 6 * index;
    g.covariance = {c[0], c[1], c[2], c[3], c[4], c[5]};
  } else {
    const float* q = scene.quats + 4 * index;
    const float* s = scene.scales + 3 * index;
    g.quaternion = {q[0], q[1], q[2], q[3]};
    g.scale = {s[0], s[1], s[2]};
  }
  g.opacity = scene.opacities[index];
  return g;
}

// Calls run(lens, covariance) with constants for each lens that the views have.
template <class Run>
void each_lens(const CudaCallData& data, const Run& run) {
  const auto with = [&](auto lens) {
    if (!data.has(decltype(lens)::value)) return;
    if (data.call().scene.covariances != nullptr) {
      run(lens, std::true_type());
    } else {
      run(lens, std::false_type());
    }
  };
  with(std::integral_constant<Lens, Lens::pinhole>());
  with(std::integral_constant<Lens, Lens::distorted>());
  with(std::integral_constant<Lens, Lens::orthographic>());
  with(std::integral_constant<Lens, Lens::fisheye>());
}

}  // namespace lumigrad::gaussians
