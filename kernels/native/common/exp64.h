// Exponential and logarithm in double, without branches or library calls, so that a loop over many values becomes SIMD
// and every machine gets the same bits. Relative error below 1e-15.
#pragma once

#include "common/number.h"

LG_BEGIN

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

// e^x; x is taken as -700 or 700 where it lies beyond.
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
  // n stands in the last bits of `shifted`.
  return from_bits64(
      static_cast<int64_t>(static_cast<uint64_t>(bits64(p)) + (static_cast<uint64_t>(bits64(shifted)) << 52)));
}

// The natural logarithm of a normal a > 0.
LG_INLINE double log64(double a) {
  constexpr double kLn2High = 0.6931471803691238, kLn2Low = 1.9082149292705877e-10;
  constexpr int64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  // Into [1/sqrt 2, sqrt 2), where the series of the inverse hyperbolic tangent is short.
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
