// Operations on the number type of the formulas, which are templates: `float` in a CUDA thread, a pack of 16 floats on
// the CPU (common/cpu/pack.h). This header has the overloads for float; each pack header has the same ones for its
// pack.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(LUMIGRAD_EMULATION)
#include "emulation/approximate.h"
#endif

#if defined(__CUDACC__)
#define LG_INLINE __host__ __device__ inline __attribute__((always_inline))
#elif defined(__SANITIZE_ADDRESS__)
// A whole projection in one function, with a check of each access, takes the compiler more than ten minutes.
#define LG_INLINE inline
#else
#define LG_INLINE inline __attribute__((always_inline))
#endif

#ifndef LUMIGRAD_ISA
#define LUMIGRAD_ISA host
#endif

// Everything compiled for one instruction set lives in a namespace of its own, so that the linker never mixes them.
#define LG_BEGIN       \
  namespace lumigrad { \
  inline namespace LUMIGRAD_ISA {
// Does the same inside lumigrad::engine.
#define LG_BEGIN_ENGINE(engine) \
  namespace lumigrad::engine {  \
  inline namespace LUMIGRAD_ISA {
#define LG_END \
  }            \
  }

LG_BEGIN

LG_INLINE float select(bool mask, float a, float b) { return mask ? a : b; }
LG_INLINE int select(bool mask, int a, int b) { return mask ? a : b; }
LG_INLINE float zero_unless(bool mask, float a) { return mask ? a : 0.0f; }
LG_INLINE float sqrt(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}
// min and max, like the SSE instructions, return the second operand if either is NaN.
LG_INLINE float min(float a, float b) { return a < b ? a : b; }
LG_INLINE float max(float a, float b) { return a > b ? a : b; }
LG_INLINE float abs(float a) { return a < 0.0f ? -a : a; }
// a * b + c, rounded once if the machine can.
LG_INLINE float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(LUMIGRAD_EMULATION)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
// c - a * b, as one operation if the machine has it.
LG_INLINE float fnma(float a, float b, float c) { return fma(-a, b, c); }
// 1 / a and 1 / sqrt(a) for a > 0, relative error below 3e-7, for uses in which the last bit does not matter.
LG_INLINE float quick_inverse(float a) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
#elif defined(LUMIGRAD_EMULATION)
  return emulation::flushed(emulation::approximated(1.0f / emulation::flushed(a)));
#else
  return 1.0f / a;
#endif
}
LG_INLINE float quick_inverse_sqrt(float a) {
#if defined(__CUDA_ARCH__)
  return rsqrtf(a);
#elif defined(LUMIGRAD_EMULATION)
  return emulation::approximated(1.0f / __builtin_sqrtf(a));
#else
  return 1.0f / __builtin_sqrtf(a);
#endif
}
LG_INLINE bool any(bool mask) { return mask; }
LG_INLINE int bits(float a) {
  int result;
  memcpy(&result, &a, sizeof(result));
  return result;
}
LG_INLINE float from_bits(int a) {
  float result;
  memcpy(&result, &a, sizeof(result));
  return result;
}
// Rounds toward zero; |a| < 2^31.
LG_INLINE int truncate(float a) { return static_cast<int>(a); }
LG_INLINE float to_float(int a) { return static_cast<float>(a); }
// Rounds to the nearest whole number; |a| < 2^22.
LG_INLINE float round_whole(float a) {
  // The sum's last bit is worth 1.
  return (a + 12582912.0f) - 12582912.0f;
}
// a * 2^n for a whole n where the result is a normal number.
LG_INLINE float scale_power(float a, float n) { return from_bits(bits(a) + (truncate(n) << 23)); }
// Exponent and mantissa of a normal a > 0: a = result.mantissa * 2^result.exponent with the mantissa in [1, 2).
LG_INLINE float exponent_of(float a) { return to_float((bits(a) >> 23) - 127); }
LG_INLINE float mantissa_of(float a) { return from_bits((bits(a) & 0x007fffff) | 0x3f800000); }

LG_END
