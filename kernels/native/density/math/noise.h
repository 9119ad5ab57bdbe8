// Noise for the means of Gaussians, as in "3D Gaussian splatting as Markov chain Monte Carlo" (Kheradmand et al.,
// NeurIPS 2024): covariance * normal, gated by opacity. Templates on the number type.
#pragma once

#include "common/math/exp.h"
#include "gaussians/math/shape.h"

LG_BEGIN_ENGINE(density)

// Noise fades as opacities rise above 1 - kGateThreshold.
inline constexpr float kGateSharpness = 100.0f, kGateThreshold = 0.995f;

// e^x, clamped to the range of normal numbers.
template <class F>
LG_INLINE F exp_bounded(F x) {
  return exp2_bounded(min(max(x * F(1.44269504f), F(-126.0f)), F(126.0f)));
}

// The gate, or 0 below 4e-18, which moves nothing: CPUs are slow with denormal numbers.
template <class F>
LG_INLINE F noise_gate(F logit) {
  const F one = F(1.0f), odds = exp_bounded(-logit);  // (1 - opacity) / opacity
  const F closed = F(kGateSharpness) * (F(kGateThreshold) - odds / (one + odds));
  return select(closed > F(40.0f), F(0.0f), one / (one + exp_bounded(closed)));
}

// covariance * v for a Gaussian with these logarithms of scales.
template <class F>
LG_INLINE gaussians::Triple<F> covariance_times(const gaussians::Quaternion<F>& q, const gaussians::Triple<F>& scale,
                                                const gaussians::Triple<F>& v) {
  const F two = F(2.0f);
  const gaussians::Matrix<F> rotation = gaussians::rotation_of(gaussians::normalized(q).q);
  const gaussians::Triple<F> variance = {exp_bounded(two * scale.x), exp_bounded(two * scale.y),
                                         exp_bounded(two * scale.z)};
  return rotation * gaussians::times(variance, gaussians::transposed_times(rotation, v));
}

LG_END
