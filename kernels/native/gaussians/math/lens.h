// Lens models: Brown-Conrady distortion and the equidistant fisheye. Templates on the number type.
#pragma once

#include "common/math/number64.h"

LG_BEGIN_ENGINE(gaussians)

template <class F>
struct Pair {
  F x, y;
};

// Brown-Conrady distortion of normalised image coordinates (u, v) = (X / Z, Y / Z), in OpenCV's order
// k1 k2 p1 p2 k3 k4 k5 k6, with first and second derivatives.

// The radial factor as a function of u^2 + v^2, and its derivatives.
template <class F>
struct Radial {
  F value, first, second;
};

template <class F>
LG_INLINE Radial<F> radial_factor(const float* k, F r2) {
  const F one = F(1.0f), two = F(2.0f);
  const F above = fma(fma(fma(F(k[4]), r2, F(k[1])), r2, F(k[0])), r2, one);
  const F below = fma(fma(fma(F(k[7]), r2, F(k[6])), r2, F(k[5])), r2, one);
  const F above1 = fma(fma(F(3.0f * k[4]), r2, F(2.0f * k[1])), r2, F(k[0]));
  const F below1 = fma(fma(F(3.0f * k[7]), r2, F(2.0f * k[6])), r2, F(k[5]));
  const F above2 = fma(F(6.0f * k[4]), r2, F(2.0f * k[1]));
  const F below2 = fma(F(6.0f * k[7]), r2, F(2.0f * k[6]));
  const F inverse = one / below;
  Radial<F> radial;
  radial.value = above * inverse;
  radial.first = (above1 - radial.value * below1) * inverse;
  radial.second = (above2 - radial.value * below2 - two * radial.first * below1) * inverse;
  return radial;
}

template <class F>
LG_INLINE Pair<F> distort(const float* k, F u, F v) {
  const F r2 = fma(u, u, v * v), two = F(2.0f);
  const F radial = radial_factor(k, r2).value;
  return {fma(u, radial, F(2.0f * k[2]) * u * v + F(k[3]) * fma(two * u, u, r2)),
          fma(v, radial, F(2.0f * k[3]) * u * v + F(k[2]) * fma(two * v, v, r2))};
}

// Jacobian of the distortion; d x / d v equals d y / d u.
template <class F>
struct DistortionJacobian {
  F xu, cross, yv;
};

template <class F>
LG_INLINE DistortionJacobian<F> distortion_jacobian(const float* k, F u, F v) {
  const Radial<F> radial = radial_factor(k, fma(u, u, v * v));
  const F two = F(2.0f), p1 = F(2.0f * k[2]), p2 = F(2.0f * k[3]), three = F(3.0f);
  return {fma(two * u * u, radial.first, radial.value) + p1 * v + three * p2 * u,
          two * u * v * radial.first + p1 * u + p2 * v,
          fma(two * v * v, radial.first, radial.value) + p2 * u + three * p1 * v};
}

// The gradient with respect to (u, v), given the Jacobian's gradient (`cross`: the sum of both entries' gradients).
template <class F>
LG_INLINE Pair<F> distortion_jacobian_backward(const float* k, F u, F v, const DistortionJacobian<F>& d) {
  const Radial<F> radial = radial_factor(k, fma(u, u, v * v));
  const F two = F(2.0f), six = F(6.0f), four = F(4.0f), p1 = F(2.0f * k[2]), p2 = F(2.0f * k[3]), three = F(3.0f);
  const F uuu = six * u * radial.first + four * u * u * u * radial.second + three * p2;
  const F uuv = two * v * radial.first + four * u * u * v * radial.second + p1;
  const F uvv = two * u * radial.first + four * u * v * v * radial.second + p2;
  const F vvv = six * v * radial.first + four * v * v * v * radial.second + three * p1;
  return {d.xu * uuu + d.cross * uuv + d.yv * uvv, d.xu * uuv + d.cross * uvv + d.yv * vvv};
}

// The equidistant fisheye (spec section 1.3): pixels grow with the angle from the axis.

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

// kappa = atan(r / Z) / r, d = (d kappa / d r) / r and e = (d d / d r) / r. Near the axis, where the closed forms
// cancel, they are computed from their series in r / Z.
template <class F>
struct Equidistant {
  F kappa, d, e;
};

template <class F>
LG_INLINE Equidistant<F> equidistant(F r2, F z) {
  const F one = F(1.0f), inverse = one / z;
  const F t = r2 * inverse * inverse;
  // Series in units of Z: kappa = sum (-t)^k / (2 k + 1), differentiated term by term.
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
