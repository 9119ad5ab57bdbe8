// Numbers of images, of bytes or floats, as floats.
#pragma once

#include "training/params_loss.h"

namespace lumigrad::training {

// Bytes are 255ths.
__device__ inline float plane_at(const Plane& plane, int64_t at) {
  if (!plane.bytes) return static_cast<const float*>(plane.data)[at];
  return static_cast<float>(static_cast<const uint8_t*>(plane.data)[at]) / 255.0f;
}

// What pixel `at` counts for.
__device__ inline float weight_at(const Plane& mask, int64_t at) {
  if (mask.data == nullptr) return 1.0f;
  if (mask.bytes) return static_cast<const uint8_t*>(mask.data)[at] != 0 ? 1.0f : 0.0f;
  return static_cast<const float*>(mask.data)[at];
}

}  // namespace lumigrad::training
