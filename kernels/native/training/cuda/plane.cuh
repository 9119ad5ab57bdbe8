// Numbers of images, of bytes or floats, as floats.
#pragma once

#include "common/math/number.h"
#include "training/params.h"

namespace lumigrad::training {

// level / 255, rounded like the quotient for each of the 256 levels, without its branch.
__device__ inline float number_of(uint8_t level) {
  constexpr float kStep = 1.0f / 255.0f;
  const float number = level, near = number * kStep;
  return fma(fnma(255.0f, near, number), kStep, near);
}

__device__ inline float number_of(float number) { return number; }

// Number `at` of a plane that has no flags.
__device__ inline float plane_at(const Plane& plane, int64_t at) {
  if (plane.numbers == Numbers::floats) return static_cast<const float*>(plane.data)[at];
  return number_of(static_cast<const uint8_t*>(plane.data)[at]);
}

// The weight of pixel `at`.
__device__ inline float weight_at(const Plane& mask, int64_t at) {
  if (mask.data == nullptr) return 1.0f;
  if (mask.numbers == Numbers::flags) return static_cast<const uint8_t*>(mask.data)[at] != 0 ? 1.0f : 0.0f;
  return plane_at(mask, at);
}

}  // namespace lumigrad::training
