// Brown-Conrady distortion of normalised image coordinates (u, v) = (X / Z, Y / Z), in OpenCV's order
// k1 k2 p1 p2 k3 k4 k5 k6, with first and second derivatives. Templates on the number type.
#pragma once

#include "common/number.h"

LG_BEGIN_ENGINE(gaussians)

template <class F>
struct Pair {
  F x, y;
};

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

// Its Jacobian; d x / d v equals d y / d u.
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

// Gradient with respect to (u, v), given that with respect to the Jacobian (`cross`: of both entries, summed).
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

LG_END
