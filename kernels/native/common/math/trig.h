// Inverse trigonometry and the tangent in double, without branches or library calls, so that a loop over many values
// becomes SIMD and every machine gets the same bits. Absolute error below 1e-13.
#pragma once

#include "common/math/number.h"

LG_BEGIN

LG_INLINE double sqrt64(double a) { return __builtin_sqrt(a); }

// (asin(x) - x) / x^3 for z = x^2 in [0, 1/4]; minimax polynomial.
LG_INLINE double asin_tail(double z) {
  double p = 0.0279070314326661;
  p = p * z - 0.0029397929067241963;
  p = p * z + 0.015675662527070935;
  p = p * z + 0.01318791613675373;
  p = p * z + 0.017441495685492855;
  p = p * z + 0.02236606593888501;
  p = p * z + 0.030382182776212484;
  p = p * z + 0.04464285243793872;
  p = p * z + 0.07500000003584559;
  return p * z + 0.1666666666666218;
}

// asin(x) for x in [-1, 1]. Beyond 1/2, asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)).
LG_INLINE double asin64(double x) {
  constexpr double kHalfPi = 1.5707963267948966;
  const double a = x < 0.0 ? -x : x;
  const bool large = a > 0.5;
  const double z = large ? (1.0 - a) * 0.5 : a * a;
  const double s = large ? sqrt64(z) : a;
  const double r = s + s * z * asin_tail(z);
  const double y = large ? kHalfPi - 2.0 * r : r;
  return x < 0.0 ? -y : y;
}

// acos(x) for x in [-1, 1], accurate even next to 1, where pi/2 - asin(x) would cancel.
LG_INLINE double acos64(double x) {
  constexpr double kPi = 3.141592653589793;
  const double a = x < 0.0 ? -x : x;
  const bool large = a > 0.5;
  const double z = large ? (1.0 - a) * 0.5 : a * a;
  const double s = large ? sqrt64(z) : a;
  const double r = s + s * z * asin_tail(z);
  const double y = large ? 2.0 * r : kPi * 0.5 - r;  // acos(|x|)
  return x < 0.0 ? kPi - y : y;
}

// tan(x) for |x| < 1e4.
LG_INLINE double tan64(double x) {
  constexpr double kTwoOverPi = 0.6366197723675814;
  constexpr double kHalfPiHigh = 1.5707963267341256, kHalfPiLow = 6.077100506506192e-11;
  // Rounds to the nearest whole number: the sum's last bit is worth 1.
  constexpr double kRound = 6755399441055744.0;
  const double shifted = x * kTwoOverPi + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kHalfPiHigh) - n * kHalfPiLow;
  const double z = r * r;
  double s = 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = r + r * z * s;
  double c = -1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 0.5;
  c = 1.0 + z * c;
  const double half = n * 0.5;
  const bool odd = half != (half + kRound) - kRound;
  return odd ? -c / s : s / c;
}

LG_END
