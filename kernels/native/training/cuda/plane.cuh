// Numbers of images, of bytes or floats, as floats.
#pragma once

#include "training/params.h"

namespace lumigrad::training {

// Number `at` of a plane that has no flags.
__device__ inline float plane_at(const Plane& plane, int64_t at) {
  if (plane.numbers == Numbers::floats) return static_cast<const float*>(plane.data)[at];
  return static_cast<float>(static_cast<const uint8_t*>(plane.data)[at]) / 255.0f;
}

// The weight of pixel `at`.
__device__ inline float weight_at(const Plane& mask, int64_t at) {
  if (mask.data == nullptr) return 1.0f;
  if (mask.numbers == Numbers::flags) return static_cast<const uint8_t*>(mask.data)[at] != 0 ? 1.0f : 0.0f;
  return plane_at(mask, at);
}

}  // namespace lumigrad::training
