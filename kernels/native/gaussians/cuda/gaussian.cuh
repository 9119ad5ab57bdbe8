// Loads one Gaussian of the scene for the formulas; evaluates spherical harmonics in registers.
#pragma once

#include "gaussians/cuda/records.cuh"
#include "gaussians/math/sensor/project.h"
#include "gaussians/math/sh.h"

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

// Loads a Gaussian in doubles, for sensors.
__device__ inline Gaussian<double> gaussian64_of(const Scene& scene, int64_t index) {
  const Gaussian<float> g = gaussian_of<false>(scene, index);
  Gaussian<double> to{};
  to.mean = {g.mean.x, g.mean.y, g.mean.z};
  to.quaternion = {g.quaternion.w, g.quaternion.x, g.quaternion.y, g.quaternion.z};
  to.scale = {g.scale.x, g.scale.y, g.scale.z};
  to.opacity = g.opacity;
  return to;
}

// Calls run(lens, number), an object of a lens's type and its number, for each lens of the sensors, including lidars.
template <class Run>
void each_sensor_lens(const CudaCallData& data, const Run& run) {
  for (const SensorLens number : kSensorLenses) {
    if (data.has(number)) with_any_sensor_lens(number, [&](auto lens) { run(lens, number); });
  }
}

// Calls run(lens, covariance), both compile-time constants, for each lens that the views have.
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

// The number of spherical harmonics up to a degree.
template <int kDegree>
inline constexpr int kHarmonics = (kDegree + 1) * (kDegree + 1);

__device__ inline int harmonics_of(int degree) { return (degree + 1) * (degree + 1); }

// Values of the harmonics in a direction, in registers.
template <int kDegree>
struct Harmonics {
  float value[kHarmonics<kDegree>];

  __device__ explicit Harmonics(const Triple<float>& d) {
    each_harmonic<kDegree>(d, [&](int k, float v, const Triple<float>&) { value[k] = v; });
  }
};

// A Gaussian's colour in a view, for scenes that have colours instead of spherical harmonics.
__device__ inline const float* given_colors(const CudaCall& call, int view, int number) {
  const int64_t count = call.scene.count;
  const int64_t row = call.scene.colors_per_view ? view * count + number : call.view[view].scene * count + number;
  return call.scene.colors + row * call.scene.channels;
}

}  // namespace lumigrad::gaussians
