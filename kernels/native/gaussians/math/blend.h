// Blending of one Gaussian at one pixel, forward and backward, and one Gaussian against a rectangle of pixels (spec
// sections 1.7 and 3.1). Templates on the number type.
#pragma once

#include "common/math/exp.h"
#include "gaussians/math/record.h"

LG_BEGIN_ENGINE(gaussians)

// The first fields of a record.
template <class F>
struct Ellipse {
  F x, y, ux, uy, vy, log2_opacity;
};

template <class F>
LG_INLINE Ellipse<F> ellipse_of(const float* r) {
  return {F(r[record::kX]),  F(r[record::kY]),  F(r[record::kUx]),
          F(r[record::kUy]), F(r[record::kVy]), F(r[record::kLog2Opacity])};
}

// log2 of opacity times the Gaussian at an offset (dx, dy) from its centre. Forward and backward must evaluate exactly
// the same expression, so that their branches agree.
template <class F>
LG_INLINE F log2_alpha(const Ellipse<F>& e, F dx, F dy) {
  const F u = fma(e.ux, dx, e.uy * dy), v = e.vy * dy;
  return fnma(v, v, fnma(u, u, e.log2_opacity));
}

// How steeply the two edges of a rectangle that face the centre are cut where the ellipse is closest to them.
template <class F>
struct Slopes {
  F along_x, along_y;  // dy at the minimum for dx = 1, and dx for dy = 1.
};

template <class F>
LG_INLINE Slopes<F> slopes_of(const Ellipse<F>& e) {
  return {-(e.ux * e.uy) / fma(e.uy, e.uy, e.vy * e.vy), -e.uy / e.ux};
}

// The largest log2 alpha in the rectangle [x0, x1] x [y0, y1], relative to the centre. Every path from the centre into
// the rectangle crosses the closest vertical or horizontal edge, so this is the larger value of these two edges.
template <class F>
LG_INLINE F best_log2_alpha(const Ellipse<F>& e, const Slopes<F>& s, F x0, F x1, F y0, F y1) {
  const F zero = F(0.0f);
  const F dx = min(max(zero, x0), x1), dy = min(max(zero, y0), y1);
  const F beside = log2_alpha(e, dx, min(max(s.along_x * dx, y0), y1));
  const F above = log2_alpha(e, min(max(s.along_y * dy, x0), x1), dy);
  return max(beside, above);
}

// Widens the test above by more than its rounding error, so that no pixel is lost.
inline constexpr float kReachMargin = 1e-3f;

// Backward: one Gaussian at one pixel, and a pixel's combined upstream gradients (spec section 3.1).

inline constexpr float kLn2Twice = 1.3862944f;
// The lower bound of the divisor of the expected depth.
inline constexpr float kLeastAlpha = 1e-10f;

// The derivatives of a pixel's expected depth D / max(A, least) with respect to D and to the transmittance 1 - A.
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

// The state of a pixel in the iteration from the last Gaussian to the first. In this direction a single number sums
// everything behind, and gradients of the farthest Gaussians keep their digits, which the difference between the
// rendered image and the Gaussians in front would lose.
template <class F>
struct PixelBackward {
  F transmittance;  // Transmittance in front of the Gaussian visited last.
  F behind;         // Sum of weight * features * their gradients behind, background and final transmittance included.
};

// `weight`: the Gaussian's share of the pixel. `v_sigma`: gradient of the exponent.
template <class F>
struct VisitGradient {
  F weight, v_sigma;
};

// `full`: opacity times the Gaussian; `alpha` is `full` clamped to `most`, and has no gradient beyond. `toward`:
// features times their gradients.
template <class F>
LG_INLINE VisitGradient<F> visit_backward(F full, F alpha, F most, F toward, PixelBackward<F>& pixel) {
  const F inverse = quick_inverse(F(1.0f) - alpha);
  const F transmittance = pixel.transmittance * inverse, weight = alpha * transmittance;
  const F v_alpha = fma(transmittance, toward, -pixel.behind * inverse);
  pixel.transmittance = transmittance;
  pixel.behind = fma(weight, toward, pixel.behind);
  const F v_sigma = -full * v_alpha;
  return {weight, select(full <= most, v_sigma, F(0.0f))};
}

LG_END
