// The exponential.
#pragma once

#include "common/number.h"

LG_BEGIN

// exp(x) for x <= 0, relative error below 3e-7 where the result is a normal number; 0 below -87.
template <class F>
LG_INLINE F exp_negative(F x) {
  const F clamped = max(x, F(-87.0f));
  const F scaled = clamped * F(1.44269504f);
  // Rounds to the nearest whole number: the sum's last bit is worth 1.
  const F round = F(12582912.0f);
  const F n = (scaled + round) - round;
  // In two steps, so that the reduced argument keeps its digits.
  F f = fma(n, F(-0.693145751953125f), clamped);
  f = fma(n, F(-1.42860682030941723212e-6f), f);
  f = f * F(1.44269504f);
  F p = F(0.0001546144469856913f);
  p = fma(p, f, F(0.0013400428177615838f));
  p = fma(p, f, F(0.009618056678524637f));
  p = fma(p, f, F(0.05550327226670302f));
  p = fma(p, f, F(0.24022650922288757f));
  p = fma(p, f, F(0.6931472067028326f));
  p = fma(p, f, F(1.0f));
  const F result = from_bits(bits(p) + (truncate(n) << 23));
  return select(x < F(-87.0f), F(0.0f), result);
}

LG_END
