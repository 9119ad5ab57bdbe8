// The response of one 2D Gaussian (surfel) at one pixel, forward and backward (sensors spec section 7; Huang et al.,
// "2D Gaussian Splatting for Geometrically Accurate Radiance Fields", 2024, sections 4.1 and 4.2). Templates on the
// number type.
//
// The ray of a pixel meets the surfel's plane at (u, v), in standard deviations along its two axes. With d = pixel -
// the projected mean, u = n_u(d) / n(d) and v = n_v(d) / n(d) are quotients of linear functions, so that no large terms
// cancel close to the surfel. A disc of sqrt(1/2) pixel about the centre of the surfel's box in the image is the
// low-pass filter: the smaller of the two distances counts.
#pragma once

#include "common/math/exp.h"
#include "gaussians/math/camera.h"
#include "gaussians/math/record.h"

LG_BEGIN_ENGINE(gaussians)

// The record of a surfel: the projected mean; coefficients of n_u and n_v for d.x and d.y, times sqrt(log2(e) / 2);
// of n for 1, d.x and d.y; the box's centre minus the mean. Then as many features as fit.
namespace surfel_record {
enum Field { kX, kY, kU, kV = 4, kN = 6, kOffsetX = 9, kOffsetY, kLog2Opacity, kFeatures };
}
inline constexpr int kInlineSurfelFeatures = kRecordFloats - surfel_record::kFeatures;

// Sums over the pixels: of v_sigma = dL/dsigma, sigma the exponent; of the gradients of n_u and n_v (kU) and of these
// times d.x and d.y (kMoments), of n (kN) and of it times d.x and d.y, without a factor that is the same for all; of
// v_sigma times (pixel - centre) where the disc counts (kDisc); and of the absolute gradients of the projected mean.
namespace surfel_row {
enum Field { kOne, kU, kV, kMoments, kN = 7, kNx, kNy, kDisc, kAbsX = 12, kAbsY, kUsed };
}

inline constexpr float kLog2E = 1.4426950f, kRootHalfLog2E = 0.84932180f;
// A plane that is closer than this to being seen edge-on at a pixel is not met.
inline constexpr float kEdgeOn = 1e-20f;

template <class F>
struct SurfelPixel {
  F dx, dy;
  F u, v, inverse;  // 1 / n
  F disc_x, disc_y;
  F power;                     // log2 of opacity times the Gaussian.
  decltype(F() < F()) inside;  // Whether the plane counts, not the disc.
  decltype(F() < F()) exists;  // Whether the ray meets the plane.
};

// Forward and backward must evaluate exactly the same expression, so that their branches agree.
template <class F>
LG_INLINE SurfelPixel<F> surfel_at(const float* r, F x, F y) {
  using namespace surfel_record;
  SurfelPixel<F> s;
  s.dx = x - F(r[kX]);
  s.dy = y - F(r[kY]);
  const F n = fma(F(r[kN + 1]), s.dx, fma(F(r[kN + 2]), s.dy, F(r[kN])));
  s.exists = abs(n) > F(kEdgeOn);
  s.inverse = quick_inverse(select(s.exists, n, F(1.0f)));
  s.u = fma(F(r[kU]), s.dx, F(r[kU + 1]) * s.dy) * s.inverse;
  s.v = fma(F(r[kV]), s.dx, F(r[kV + 1]) * s.dy) * s.inverse;
  s.disc_x = s.dx - F(r[kOffsetX]);
  s.disc_y = s.dy - F(r[kOffsetY]);
  const F plane = fma(s.u, s.u, s.v * s.v), disc = F(kLog2E) * fma(s.disc_x, s.disc_x, s.disc_y * s.disc_y);
  s.inside = plane <= disc;
  s.power = F(r[kLog2Opacity]) - min(plane, disc);
  return s;
}

// The geometric part of a row, in the order of surfel_row; `abs_x` and `abs_y` come from add_absolute
// (math/surfel_project.h).
template <class F>
struct SurfelRow {
  F one, u, v, ux, uy, vx, vy, n, nx, ny, disc_x, disc_y, abs_x, abs_y;
};

template <class F>
LG_INLINE void add_to_row(const SurfelPixel<F>& s, F v_sigma, SurfelRow<F>& to) {
  const F plane = zero_unless(s.inside, v_sigma), disc = v_sigma - plane, zero = F(0.0f);
  // The plane may be met anywhere where the disc counts.
  const F u = select(s.inside, s.u, zero), v = select(s.inside, s.v, zero), scale = plane * s.inverse;
  const F v_u = scale * u, v_v = scale * v, v_n = -fma(v_u, u, v_v * v);
  to.one = to.one + v_sigma;
  to.u = to.u + v_u;
  to.v = to.v + v_v;
  to.ux = fma(v_u, s.dx, to.ux);
  to.uy = fma(v_u, s.dy, to.uy);
  to.vx = fma(v_v, s.dx, to.vx);
  to.vy = fma(v_v, s.dy, to.vy);
  to.n = to.n + v_n;
  to.nx = fma(v_n, s.dx, to.nx);
  to.ny = fma(v_n, s.dy, to.ny);
  to.disc_x = fma(disc, s.disc_x, to.disc_x);
  to.disc_y = fma(disc, s.disc_y, to.disc_y);
}

// Depths of a pixel's surfels: the median, the depth of the last surfel with a transmittance above 1/2 in front of it,
// and the distortion, the sum over pairs j < i of 2 w_i w_j (z_i - z_j) (section 5 of the paper, without squares).
template <class F>
struct DepthSums {
  F median, distortion, depth;
};

template <class F>
LG_INLINE void add_depth(DepthSums<F>& to, decltype(F() < F()) live, F weight, F before, F z) {
  const F one = F(1.0f), in_front = fma(z, one - before, -to.depth);
  to.distortion = fma(weight + weight, in_front, to.distortion);
  to.depth = fma(weight, z, to.depth);
  to.median = select(live & (before > F(0.5f)), z, to.median);
}

// The derivatives of the distortion with respect to the weight and the depth of a surfel: `before` is the transmittance
// in front of it, `in_front` the sum of weights times depths in front of it, and `alpha` and `depth` are the sums of
// weights and of weights times depths over all surfels.
template <class F>
struct DistortionSlope {
  F weight, depth;
};
template <class F>
LG_INLINE DistortionSlope<F> distortion_slope(F weight, F z, F before, F in_front, F alpha, F depth) {
  const F two = F(2.0f), share = fma(two, F(1.0f) - before, -alpha);
  return {two * fma(z, share, fnma(two, in_front, depth)), two * weight * (share + weight)};
}

LG_END
