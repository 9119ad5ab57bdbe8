// Square roots and quotients without branches. The compiler's have one each: not only for results near the ends of the
// range, but also for 0, and the moments of a row that no view has seen are 0. The steps are those that the compiler
// takes for ordinary numbers, so that the results are the same.
#pragma once

#include "common/math/number.h"

namespace lumigrad::training {

// sqrt(a), rounded like sqrt(); clears `sure` where it may not be.
__device__ inline float rounded_root(float a, bool& sure) {
  const float inverse = quick_inverse_sqrt(a), near = a * inverse;
  const float root = fma(fnma(near, near, a), 0.5f * inverse, near);
  sure &= (a == 0.0f) | ((a > 1e-30f) & (a < 1e38f));
  return a == 0.0f ? 0.0f : root;
}

// a / b, rounded like the operator; clears `sure` where it may not be.
__device__ inline float rounded_quotient(float a, float b, bool& sure) {
  constexpr float kScale = 18446744073709551616.0f;  // 2^64, so that the remainder is exact for the smallest a.
  const float scaled = a * kScale, near_inverse = quick_inverse(b);
  const float inverse = fma(near_inverse, fnma(b, near_inverse, 1.0f), near_inverse);
  const float near = scaled * inverse;
  const float quotient = fma(inverse, fnma(b, near, scaled), near);
  const float size = abs(quotient);
  sure &= ((a == 0.0f) | ((size > 1e-18f) & (size < 1e38f))) & (b > 1e-18f) & (b < 1e18f);
  return a == 0.0f ? a : quotient * (1.0f / kScale);
}

}  // namespace lumigrad::training
