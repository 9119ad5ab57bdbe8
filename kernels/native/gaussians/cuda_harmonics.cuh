// Spherical harmonics in registers.
#pragma once

#include "gaussians/cuda_records.cuh"
#include "gaussians/math_sh.h"

namespace lumigrad::gaussians {

template <int kDegree>
inline constexpr int kHarmonics = (kDegree + 1) * (kDegree + 1);

// Their values in a direction.
template <int kDegree>
struct Harmonics {
  float value[kHarmonics<kDegree>];

  __device__ explicit Harmonics(const Triple<float>& d) {
    each_harmonic<kDegree>(d, [&](int k, float v, const Triple<float>&) { value[k] = v; });
  }
};

// Calls run(std::integral_constant<int, degree>()).
template <class Run>
void with_degree(int degree, const Run& run) {
  static_assert(kMaxDegree == 4);
  switch (degree) {
    case 0:
      return run(std::integral_constant<int, 0>());
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 3:
      return run(std::integral_constant<int, 3>());
    default:
      return run(std::integral_constant<int, 4>());
  }
}

// Where colours are given: those that a view sees.
__device__ inline const float* given_colors(const CudaCall& call, int view, int number) {
  const int64_t count = call.scene.count;
  const int64_t row = call.scene.colors_per_view ? view * count + number : call.view[view].scene * count + number;
  return call.scene.colors + row * call.scene.channels;
}

}  // namespace lumigrad::gaussians
