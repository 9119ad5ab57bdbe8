// The operations of number.h on doubles, for formulas that would lose pixels in single precision.
#pragma once

#include "common/math/number.h"

// For a function that is too large to be inlined in each place that calls it.
#if defined(__CUDACC__)
#define LG_CALLED __host__ __device__ __noinline__
#else
#define LG_CALLED __attribute__((noinline))
#endif
// LG_UNROLL precedes a loop over an array that should stay in registers.
#if defined(__CUDA_ARCH__)
#define LG_UNROLL _Pragma("unroll")
#else
#define LG_UNROLL
#endif

LG_BEGIN

LG_INLINE double select(bool mask, double a, double b) { return mask ? a : b; }
LG_INLINE double zero_unless(bool mask, double a) { return mask ? a : 0.0; }
LG_INLINE double sqrt(double a) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(a);
#else
  return __builtin_sqrt(a);
#endif
}
// min and max, like the SSE instructions, return the second operand if either is NaN.
LG_INLINE double min(double a, double b) { return a < b ? a : b; }
LG_INLINE double max(double a, double b) { return a > b ? a : b; }
LG_INLINE double abs(double a) { return a < 0.0 ? -a : a; }
// a * b + c, rounded once if the machine can.
LG_INLINE double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#elif defined(__FMA__) || defined(LUMIGRAD_EMULATION)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
// c - a * b.
LG_INLINE double fnma(double a, double b, double c) { return fma(-a, b, c); }

// The type of a comparison of two numbers.
template <class F>
using MaskOf = decltype(F() < F());

// The nearest whole number; |a| < 2^51.
template <class D>
LG_INLINE D nearest_whole(D a) {
  // The sum's last bit is worth 1.
  return (a + D(6755399441055744.0)) - D(6755399441055744.0);
}
template <class D>
LG_INLINE D floor_whole(D a) {
  const D nearest = nearest_whole(a);
  return select(nearest > a, nearest - D(1.0), nearest);
}

LG_END
