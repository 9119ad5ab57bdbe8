// Numbers of images, of bytes or floats, as floats.
#pragma once

#include "training/params.h"

namespace lumigrad::training {

__device__ inline float plane_at(const Plane& plane, int64_t at) {
  if (plane.numbers == Numbers::floats) return static_cast<const float*>(plane.data)[at];
  const uint8_t byte = static_cast<const uint8_t*>(plane.data)[at];
  return plane.numbers == Numbers::levels ? static_cast<float>(byte) / 255.0f : byte != 0 ? 1.0f : 0.0f;
}

// The weight of pixel `at`.
__device__ inline float weight_at(const Plane& mask, int64_t at) {
  return mask.data == nullptr ? 1.0f : plane_at(mask, at);
}

}  // namespace lumigrad::training
