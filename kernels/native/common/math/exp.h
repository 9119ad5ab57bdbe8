// Exponentials and logarithms, for the number type of the formulas and in double.
#pragma once

#include "common/math/number.h"

LG_BEGIN

// exp(x) for -87 <= x <= 88, relative error below 1.2e-7.
template <class F>
LG_INLINE F exp_reduced(F x) {
  const F n = round_whole(x * F(1.44269504f));
  // Subtracting in two steps keeps the digits of the reduced argument.
  F r = fma(n, F(-0.693145751953125f), x);
  r = fma(n, F(-1.42860682030941723212e-6f), r);
  F q = F(0.0013814540579915047f);
  q = fma(q, r, F(0.00836874544620514f));
  q = fma(q, r, F(0.04166838899254799f));
  q = fma(q, r, F(0.1666652113199234f));
  q = fma(q, r, F(0.4999999403953552f));
  return scale_power(fma(r * r, q, r) + F(1.0f), n);
}

// exp(x) for x <= 0, relative error below 1.2e-7 where the result is a normal number; 0 below -87.
template <class F>
LG_INLINE F exp_negative(F x) {
  return select(x < F(-87.0f), F(0.0f), exp_reduced(max(x, F(-87.0f))));
}

// exp(x) for x clamped to [-87, 88], where the result is a normal number; relative error below 1.2e-7. NaN stays NaN.
template <class F>
LG_INLINE F exp_within(F x) {
  // min and max return the second operand if either is NaN.
  return exp_reduced(min(F(88.0f), max(F(-87.0f), x)));
}

// 2^x for -126 <= x <= 0.5, relative error below 2e-7. Undefined for other x.
template <class F>
LG_INLINE F exp2_bounded(F x) {
  const F n = round_whole(x), f = x - n;
  F p = F(0.001327645150013268f);
  p = fma(p, f, F(0.009675540961325169f));
  p = fma(p, f, F(0.05550713464617729f));
  p = fma(p, f, F(0.24022120237350464f));
  p = fma(p, f, F(0.6931469440460205f));
  p = fma(p, f, F(1.0f));
  return scale_power(p, n);
}

// A GPU has an instruction for it.
LG_INLINE float exp2_bounded(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#elif defined(LUMIGRAD_EMULATION)
  if (x == 0.0f) return 1.0f;  // Hardware also returns exactly 1.
  return emulation::flushed(emulation::approximated(exp2_bounded<float>(emulation::flushed(x))));
#else
  return exp2_bounded<float>(x);
#endif
}

// log2(a) for normal a > 0, absolute error below 2e-7 where |log2 a| < 1, else relative.
template <class F>
LG_INLINE F log2_positive(F a) {
  const F m = mantissa_of(a);
  // Reduces to [1/sqrt 2, sqrt 2), where the series of the inverse hyperbolic tangent is short.
  const auto upper = m > F(1.41421356f);
  const F reduced = select(upper, m * F(0.5f), m);
  const F n = exponent_of(a) + select(upper, F(1.0f), F(0.0f));
  const F s = (reduced - F(1.0f)) / (reduced + F(1.0f)), z = s * s;
  F p = F(0.3205989f);
  p = fma(p, z, F(0.41219858f));
  p = fma(p, z, F(0.57707802f));
  p = fma(p, z, F(0.96179669f));
  p = fma(p, z, F(2.8853901f));
  return fma(p, s, n);
}

// Exponential and logarithm in double, without branches or library calls, so that a loop over many values becomes SIMD
// and every machine gets the same bits. Relative error below 1e-15.

LG_INLINE int64_t bits64(double a) {
  int64_t result;
  memcpy(&result, &a, sizeof(result));
  return result;
}
LG_INLINE double from_bits64(int64_t a) {
  double result;
  memcpy(&result, &a, sizeof(result));
  return result;
}

// e^x; x is clamped to [-700, 700].
LG_INLINE double exp64(double x) {
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0.6931471803691238, kLn2Low = 1.9082149292705877e-10;
  // Rounds to the nearest whole number: the sum's last bit is worth 1.
  constexpr double kRound = 6755399441055744.0;
  const double low = x < -700.0 ? -700.0 : x, y = low > 700.0 ? 700.0 : low;
  const double shifted = y * kLog2E + kRound, n = shifted - kRound;
  const double r = (y - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // n is in the last bits of `shifted`.
  return from_bits64(
      static_cast<int64_t>(static_cast<uint64_t>(bits64(p)) + (static_cast<uint64_t>(bits64(shifted)) << 52)));
}

// The natural logarithm of a normal a > 0.
LG_INLINE double log64(double a) {
  constexpr double kLn2High = 0.6931471803691238, kLn2Low = 1.9082149292705877e-10;
  constexpr int64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  // Reduces to [1/sqrt 2, sqrt 2), where the series of the inverse hyperbolic tangent is short.
  const int64_t exponent = (bits64(a) - kSqrtHalf) >> 52;
  const double m =
      from_bits64(static_cast<int64_t>(static_cast<uint64_t>(bits64(a)) - (static_cast<uint64_t>(exponent) << 52)));
  const double n = static_cast<double>(exponent), s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 2.0 / 21.0;
  p = p * z + 2.0 / 19.0;
  p = p * z + 2.0 / 17.0;
  p = p * z + 2.0 / 15.0;
  p = p * z + 2.0 / 13.0;
  p = p * z + 2.0 / 11.0;
  p = p * z + 2.0 / 9.0;
  p = p * z + 2.0 / 7.0;
  p = p * z + 2.0 / 5.0;
  p = p * z + 2.0 / 3.0;
  return n * kLn2High + (2.0 * s + (s * z * p + n * kLn2Low));
}

LG_END
