// Stands in for CUDA's header of this name: 16-bit floats and their conversions.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

struct __half {
  uint16_t bits;
};

// Rounds to nearest, ties to even.
inline __half __float2half_rn(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value), sign = all >> 16 & 0x8000u, magnitude = all & 0x7FFFFFFFu;
  const float size = std::bit_cast<float>(magnitude);
  uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7FFFu;
  } else if (size >= 65520.0f) {
    half = 0x7C00u;
  } else if (size < 0x1p-14f) {
    half = static_cast<uint32_t>(rintf(size * 0x1p24f));
  } else {
    half = (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

inline float __half2float(__half value) {
  const uint32_t exponent = value.bits >> 10 & 31u, digits = value.bits & 0x3FFu;
  float size = static_cast<float>(digits) * 0x1p-24f;
  if (exponent == 31) {
    size = digits != 0 ? NAN : INFINITY;
  } else if (exponent != 0) {
    size = std::bit_cast<float>((exponent + 112u) << 23 | digits << 13);
  }
  return copysignf(size, (value.bits & 0x8000u) != 0 ? -1.0f : 1.0f);
}
