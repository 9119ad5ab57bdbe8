// One Gaussian at one pixel, and one Gaussian against a rectangle of pixels (spec sections 1.7 and 3.1). Templates on
// the number type.
#pragma once

#include "common/exp.h"
#include "gaussians/record.h"

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

// log2 of opacity times the Gaussian at a distance (dx, dy) from its centre. Forward and backward must evaluate the
// very same expression, so that their branches agree.
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

// The largest log2 alpha in the rectangle [x0, x1] x [y0, y1], relative to the centre. Every way from the centre into
// the rectangle crosses the vertical or the horizontal edge that is closest: the best of these two.
template <class F>
LG_INLINE F best_log2_alpha(const Ellipse<F>& e, const Slopes<F>& s, F x0, F x1, F y0, F y1) {
  const F zero = F(0.0f);
  const F dx = min(max(zero, x0), x1), dy = min(max(zero, y0), y1);
  const F beside = log2_alpha(e, dx, min(max(s.along_x * dx, y0), y1));
  const F above = log2_alpha(e, min(max(s.along_y * dy, x0), x1), dy);
  return max(beside, above);
}

// Widens the test above by more than rounding costs, so that nothing is lost.
inline constexpr float kReachMargin = 1e-3f;

LG_END
