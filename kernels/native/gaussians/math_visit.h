// One Gaussian at one pixel on the way back, and what a pixel's upstream gradients amount to (spec section 3.1).
// Templates on the number type.
#pragma once

#include "gaussians/math_blend.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr float kLn2Twice = 1.3862944f;
// What depth is divided by at the least, for the expected depth.
inline constexpr float kLeastAlpha = 1e-10f;

// The expected depth D / max(A, least) of a pixel, differentiated: to D, and to the transmittance 1 - A.
template <class F>
struct ExpectedDepthGradient {
  F depth, transmittance;
};

template <class F>
LG_INLINE ExpectedDepthGradient<F> expected_depth_backward(F depth, F transmittance, F v_expected) {
  const F alpha = F(1.0f) - transmittance;
  const auto divided = alpha > F(kLeastAlpha);
  const F v_depth = v_expected / select(divided, alpha, F(kLeastAlpha));
  return {v_depth, select(divided, v_depth * depth / select(divided, alpha, F(1.0f)), F(0.0f))};
}

// A pixel between two visits, from the last Gaussian to the first. In this direction a single number stands for all
// that lies behind, and it is a sum of what is there: the gradients of the farthest ones keep their digits, which the
// difference between the rendered image and what lies in front would lose.
template <class F>
struct PixelBackward {
  F transmittance;  // Of what lies in front of the Gaussian visited last.
  F behind;         // Sum of weight * features * their gradients behind, background and final transmittance included.
};

// `weight`: the Gaussian's share of the pixel. `v_sigma`: gradient of the exponent.
template <class F>
struct VisitGradient {
  F weight, v_sigma;
};

// `full`: opacity times the Gaussian; `toward`: features times their gradients. `fork`: a clamped alpha sends its
// gradient on, as in the depth fork (spec section 6, item 4).
template <class F>
LG_INLINE VisitGradient<F> visit_backward(F full, F alpha_max, bool fork, F toward, PixelBackward<F>& pixel) {
  const F alpha = min(full, alpha_max), inverse = quick_inverse(F(1.0f) - alpha);
  const F transmittance = pixel.transmittance * inverse, weight = alpha * transmittance;
  const F v_alpha = fma(transmittance, toward, -pixel.behind * inverse);
  pixel.transmittance = transmittance;
  pixel.behind = fma(weight, toward, pixel.behind);
  const F v_sigma = -full * v_alpha;
  return {weight, fork ? v_sigma : select(full <= alpha_max, v_sigma, F(0.0f))};
}

// d sigma / d (dx, dy), sigma the exponent.
template <class F>
struct ExponentSlope {
  F x, y;
};

template <class F>
LG_INLINE ExponentSlope<F> exponent_slope(const Ellipse<F>& e, F dx, F dy) {
  const F twice = F(kLn2Twice), u = fma(e.ux, dx, e.uy * dy);
  return {twice * e.ux * u, twice * fma(e.uy, u, e.vy * (e.vy * dy))};
}

LG_END
