// The equidistant fisheye (spec section 1.3): pixels grow with the angle from the axis. Templates on the number type.
#pragma once

#include "common/number.h"

LG_BEGIN_ENGINE(gaussians)

// atan(x) for x >= 0, relative error below 2e-7.
template <class F>
LG_INLINE F arctangent(F x) {
  const auto inverted = x > F(1.0f);
  const F y = select(inverted, F(1.0f) / x, x);
  // Below tan(pi / 8) the series is short.
  const auto turned = y > F(0.41421356f);
  const F z = select(turned, (y - F(1.0f)) / (y + F(1.0f)), y), z2 = z * z;
  F p = F(8.05374449538e-2f);
  p = fma(p, z2, F(-1.38776856032e-1f));
  p = fma(p, z2, F(1.99777106478e-1f));
  p = fma(p, z2, F(-3.33329491539e-1f));
  const F angle = fma(p * z2, z, z) + select(turned, F(0.78539816f), F(0.0f));
  return select(inverted, F(1.57079633f) - angle, angle);
}

// kappa = atan(r / Z) / r, d = (d kappa / d r) / r and e = (d d / d r) / r. Near the axis they come from their series
// in r / Z, where the closed forms cancel.
template <class F>
struct Equidistant {
  F kappa, d, e;
};

template <class F>
LG_INLINE Equidistant<F> equidistant(F r2, F z) {
  const F one = F(1.0f), inverse = one / z;
  const F t = r2 * inverse * inverse;
  // In units of Z: kappa = sum (-t)^k / (2 k + 1), differentiated term by term.
  F kappa = F(0.0f), d = F(0.0f), e = F(0.0f);
  for (int k = 8; k >= 0; --k) {
    const float term = (k % 2 == 0 ? 1.0f : -1.0f) / static_cast<float>(2 * k + 1);
    kappa = fma(kappa, t, F(term));
    if (k >= 1) d = fma(d, t, F(term * static_cast<float>(2 * k)));
    if (k >= 2) e = fma(e, t, F(term * static_cast<float>(4 * k * (k - 1))));
  }
  const auto far = t > F(0.1f);
  const F safe = select(far, t, one), x = sqrt(safe), w = one / (one + safe);
  const F kappa_far = arctangent(x) / x;
  const F d_far = (w - kappa_far) / safe;
  const F e_far = -(F(2.0f) * w * w + F(3.0f) * d_far) / safe;
  const F inverse3 = inverse * inverse * inverse;
  return {select(far, kappa_far, kappa) * inverse, select(far, d_far, d) * inverse3,
          select(far, e_far, e) * inverse3 * inverse * inverse};
}

LG_END
