// Projection of a surfel: its record, its box, an ellipse that holds the pixels it may reach, and the gradients
// (sensors spec section 7). Templates on the number type.
//
// Axes a and b (times their lengths) and mean p in the camera's frame give the matrix from (u, v, 1) to
// homogeneous pixels relative to the projected mean; its rows are (p0, q0, 0), (p1, q1, 0) and (a.z, b.z, p.z), where
// p0 = fx (a.x - p.x / p.z a.z) and so on. n_u, n_v and n (math/surfel.h) are the columns of its adjugate.
#pragma once

#include "gaussians/math/project_backward.h"
#include "gaussians/math/sensor/project.h"
#include "gaussians/math/surfel.h"

LG_BEGIN_ENGINE(gaussians)

// gsplat's boxes end this many standard deviations from their centre, and have at least this variance, squared pixels.
inline constexpr float kSurfelExtent = 3.33f, kLeastSurfelVariance = 1e-4f;
// Surfels whose axes are larger in the image, in pixels times depth, are not drawn, nor are those without any extent.
inline constexpr float kLargestSurfel = 1e15f, kSmallestSurfel = 1e-30f;

template <class F>
struct SurfelShape {
  Triple<F> p, a, b;  // Camera frame.
  UnitQuaternion<F> unit;
  Matrix<F> rotation;
  F tx, ty;          // p / p.z
  F p0, q0, p1, q1;  // See above.
  F divisor;         // 1 / (a.z^2 + b.z^2 - p.z^2)
  F offset_x, offset_y;
  F scale;           // Common factor of the record's coefficients, which are homogeneous.
  Triple<F> normal;  // The third axis turned to the camera, in the slice's frame.
  F turn;            // -1 if the third axis was reversed, else 1.
};

template <class F>
LG_INLINE SurfelShape<F> surfel_shape(const View& view, const Pose& pose, const Settings& settings,
                                      const Gaussian<F>& g, const Triple<F>& p) {
  SurfelShape<F> s;
  s.p = p;
  s.unit = normalized(g.quaternion);
  s.rotation = rotation_of(s.unit.q);
  const Matrix<F> camera = rotation_of<F>(pose);
  const Matrix<F>& r = s.rotation;
  s.a = scaled(camera * Triple<F>{r.x.x, r.y.x, r.z.x}, g.scale.x * F(settings.scale_modifier));
  s.b = scaled(camera * Triple<F>{r.x.y, r.y.y, r.z.y}, g.scale.y * F(settings.scale_modifier));
  const Triple<F> third = {r.x.z, r.y.z, r.z.z};
  s.turn = select(dot(camera * third, p) < F(0.0f), F(1.0f), F(-1.0f));
  s.normal = scaled(third, s.turn);
  const F inverse_z = F(1.0f) / p.z, fx = F(view.fx), fy = F(view.fy);
  s.tx = p.x * inverse_z;
  s.ty = p.y * inverse_z;
  s.p0 = fx * fnma(s.tx, s.a.z, s.a.x);
  s.q0 = fx * fnma(s.tx, s.b.z, s.b.x);
  s.p1 = fy * fnma(s.ty, s.a.z, s.a.y);
  s.q1 = fy * fnma(s.ty, s.b.z, s.b.y);
  const F distance = fma(s.a.z, s.a.z, fma(s.b.z, s.b.z, -(p.z * p.z)));
  s.divisor = select(distance == F(0.0f), F(0.0f), F(1.0f) / select(distance == F(0.0f), F(1.0f), distance));
  s.offset_x = fma(s.p0, s.a.z, s.q0 * s.b.z) * s.divisor;
  s.offset_y = fma(s.p1, s.a.z, s.q1 * s.b.z) * s.divisor;
  const F largest = max(max(abs(s.p0), abs(s.q0)), max(abs(s.p1), abs(s.q1)));
  s.scale = F(1.0f) / max(largest, F(kSmallestSurfel));
  return s;
}

// An ellipse, relative to the projected mean, that holds the pixels in which alpha may reach its minimum: where the
// plane is met within the corresponding number of standard deviations, widened by the disc.
template <class F>
struct SurfelReach {
  F x, y, a, b, c, schur;
};
template <class F>
LG_INLINE SurfelReach<F> surfel_reach(const SurfelShape<F>& s, F reach2) {
  const F zero = F(0.0f), z2 = s.p.z * s.p.z;
  const F across = reach2 * fma(s.a.z, s.a.z, s.b.z * s.b.z);
  // Close to the camera's plane the outline is not an ellipse.
  const auto bounded = across < F(0.999f) * z2;
  const F divisor = F(-1.0f) / select(bounded, z2 - across, F(1.0f)), along = reach2 * divisor;
  SurfelReach<F> e;
  e.x = select(bounded, fma(s.p0, s.a.z, s.q0 * s.b.z) * along, zero);
  e.y = select(bounded, fma(s.p1, s.a.z, s.q1 * s.b.z) * along, zero);
  const F xx = fma(e.x, e.x, -fma(s.p0, s.p0, s.q0 * s.q0) * along);
  const F xy = fma(e.x, e.y, -fma(s.p0, s.p1, s.q0 * s.q1) * along);
  const F yy = fma(e.y, e.y, -fma(s.p1, s.p1, s.q1 * s.q1) * along);
  const F from_x = s.offset_x - e.x, from_y = s.offset_y - e.y;
  const F disc = sqrt(F(0.5f) * reach2) + sqrt(fma(from_x, from_x, from_y * from_y));
  // The ellipse's shorter axis is at least the disc's radius; `slack` exceeds the rounding error of long ellipses.
  const F mid = F(0.5f) * (xx + yy), half = F(0.5f) * (xx - yy), slack = F(4e-6f) * mid;
  const F shortest = mid - sqrt(fma(half, half, xy * xy)) - slack;
  const F wider = max(fma(disc, disc, -shortest), zero) + slack, everywhere = F(1e24f), inverse = F(1.0f) / reach2;
  e.a = select(bounded, (xx + wider) * inverse, everywhere);
  e.b = select(bounded, xy * inverse, zero);
  e.c = select(bounded, (yy + wider) * inverse, everywhere);
  // The determinant of an ellipse that is everywhere has no room in float32.
  e.schur = select(bounded, determinant(e.a, e.b, e.c) / e.c, everywhere);
  return e;
}

template <class F>
struct ProjectedSurfel {
  Projected<F> g;  // The ellipse of the reach; x and y are the box's centre.
  F reach_x, reach_y;
  F mean_x, mean_y;
  SurfelShape<F> shape;

  // The fields of a surfel_record.
  LG_INLINE void write_record(F* to) const {
    using namespace surfel_record;
    const SurfelShape<F>& s = shape;
    const F k = F(kRootHalfLog2E) * s.scale * s.p.z;
    to[kX] = mean_x;
    to[kY] = mean_y;
    to[kU] = k * s.q1;
    to[kU + 1] = -(k * s.q0);
    to[kV] = -(k * s.p1);
    to[kV + 1] = k * s.p0;
    to[kN] = s.scale * determinant_of(s.p0, s.q0, s.p1, s.q1);
    to[kN + 1] = s.scale * determinant_of(s.p1, s.q1, s.a.z, s.b.z);
    to[kN + 2] = s.scale * determinant_of(s.a.z, s.b.z, s.p0, s.q0);
    to[kOffsetX] = s.offset_x;
    to[kOffsetY] = s.offset_y;
    to[kLog2Opacity] = g.log2_opacity;
  }
  // a.z and b.z, scaled like n_u and n_v, for the gradients of density control.
  LG_INLINE Pair<F> tilt() const {
    const F k = F(kRootHalfLog2E) * shape.scale * shape.p.z;
    return {k * shape.a.z, k * shape.b.z};
  }

 private:
  // a d - b c without cancellation (Kahan).
  static LG_INLINE F determinant_of(F a, F b, F c, F d) {
    const F w = b * c;
    return fma(a, d, -w) + fma(-b, c, w);
  }
};

template <class F>
LG_INLINE ProjectedSurfel<F> project_surfel(const View& view, const Pose& pose, const Settings& settings,
                                            const Gaussian<F>& gaussian) {
  ProjectedSurfel<F> to;
  Projected<F>& g = to.g;
  const Triple<F> p = to_camera<Lens::pinhole>(view, pose, settings, gaussian.mean, g.visible);
  g.visible = g.visible & (p.z > F(settings.near)) & (p.z < F(settings.far));
  to.shape = surfel_shape(view, pose, settings, gaussian, p);
  const SurfelShape<F>& s = to.shape;
  const F largest = max(max(abs(s.p0), abs(s.q0)), max(abs(s.p1), abs(s.q1)));
  const Pair<F> mean = pixel_of<Lens::pinhole>(view, p);
  to.mean_x = mean.x;
  to.mean_y = mean.y;
  g.depth = p.z;
  g.visible = g.visible & (abs(s.divisor) > F(0.0f)) & (largest < F(kLargestSurfel)) & (abs(mean.x) < F(1e12f)) &
              (abs(mean.y) < F(1e12f));
  const F above = log2_positive(max(gaussian.opacity, F(1e-30f))) - F(log2_positive(settings.alpha_min));
  const SurfelReach<F> reach = surfel_reach(s, max(F(kTwoLn2) * above, F(1e-6f)));
  to.reach_x = g.x = mean.x + reach.x;
  to.reach_y = g.y = mean.y + reach.y;
  struct {
    F a, b, c, sharp, schur;
  } f = {reach.a, reach.b, reach.c, F(0.0f), reach.schur};
  const auto seen = g.visible;
  finish_ellipse(view, settings, f, gaussian.opacity, g);
  // Visibility and the box do not follow from the ellipse.
  g.right = select(g.visible, g.right, g.left);
  g.visible = seen;
  g.right = select(largest > F(kSmallestSurfel), g.right, g.left);
  const F least = F(kLeastSurfelVariance);
  const F half_x = fnma(fma(s.p0, s.p0, s.q0 * s.q0), s.divisor, s.offset_x * s.offset_x);
  const F half_y = fnma(fma(s.p1, s.p1, s.q1 * s.q1), s.divisor, s.offset_y * s.offset_y);
  g.radius_x = ceil_whole(min(F(kSurfelExtent) * sqrt(max(half_x, least)), F(1e6f)));
  g.radius_y = ceil_whole(min(F(kSurfelExtent) * sqrt(max(half_y, least)), F(1e6f)));
  g.x = mean.x + s.offset_x;
  g.y = mean.y + s.offset_y;
  const F clip = F(settings.radius_clip);
  g.visible = g.visible & ((g.radius_x > clip) | (g.radius_y > clip));
  gsplat_tiles(view, settings, g);
  return to;
}

// Gradients that a surfel receives in a view: the sums of surfel_row over its pixels, and the gradients of its depth,
// of its normal in the slice's frame, and of the box's centre.
template <class F>
struct SurfelUpstream {
  const F* row;
  F depth;
  Triple<F> normal;
  Pair<F> extra;
};

// Gradients of the Gaussian and the pose, from the gradients of the mean and the axes in the camera's frame.
template <class F>
LG_INLINE void surfel_axes_backward(const Pose& pose, const Settings& settings, const Gaussian<F>& gaussian,
                                    const SurfelShape<F>& s, const Triple<F>& v_p, const Triple<F>& v_a,
                                    const Triple<F>& v_b, const Triple<F>& v_normal, GaussianGradient<F>& to) {
  const Matrix<F> camera = rotation_of<F>(pose);
  const F modifier = F(settings.scale_modifier);
  const F length_a = gaussian.scale.x * modifier, length_b = gaussian.scale.y * modifier;
  const Matrix<F>& r = s.rotation;
  const Triple<F> first = {r.x.x, r.y.x, r.z.x}, second = {r.x.y, r.y.y, r.z.y};
  const Triple<F> from_a = transposed_times(camera, v_a), from_b = transposed_times(camera, v_b);
  to.scale = {modifier * dot(first, from_a), modifier * dot(second, from_b), F(0.0f)};
  const Triple<F> x = scaled(from_a, length_a), y = scaled(from_b, length_b), z = scaled(v_normal, s.turn);
  const Matrix<F> v_rotation = {{x.x, y.x, z.x}, {x.y, y.y, z.y}, {x.z, y.z, z.z}};
  to.quaternion = normalized_backward(s.unit, rotation_backward(s.unit.q, v_rotation));
  to.translation = v_p;
  to.mean = transposed_times(camera, v_p);
  to.rotation = outer(v_p, gaussian.mean) + outer(v_a, scaled(first, length_a)) + outer(v_b, scaled(second, length_b));
}

// gsplat's gradient for density control ("gradient_2dgs") is the gradient of the third entries of the matrix's first
// two rows times the depth, as if the projected mean moved, but neither axis. Adds the absolute value of a pixel's
// gradient.
template <class F>
LG_INLINE void add_absolute(const float* r, const Pair<F>& tilt, const SurfelPixel<F>& s, F v_sigma, F& x, F& y) {
  using namespace surfel_record;
  const F zero = F(0.0f), scale = zero_unless(s.inside, v_sigma) * s.inverse;
  const F v_u = scale * select(s.inside, s.u, zero), v_v = scale * select(s.inside, s.v, zero);
  x = x + abs(v_u * fma(tilt.y, s.dy, -F(r[kU])) - v_v * fma(tilt.x, s.dy, F(r[kV])));
  y = y + abs(v_v * fma(tilt.x, s.dx, -F(r[kV + 1])) - v_u * fma(tilt.y, s.dx, F(r[kU + 1])));
}

// The absolute gradients of the projected mean, given its sums.
template <class F>
LG_INLINE Pair<F> absolute_mean2d(const F* row) {
  return {F(kTwoLn2) * row[surfel_row::kAbsX], F(kTwoLn2) * row[surfel_row::kAbsY]};
}

// All gradients except the spherical harmonics'. `normal` receives the surfel's normal in the slice's frame. The
// Gaussian must be visible.
template <class F>
LG_INLINE GaussianGradient<F> surfel_backward(const View& view, const Pose& pose, const Settings& settings,
                                              const Gaussian<F>& gaussian, const SurfelUpstream<F>& sums,
                                              Triple<F>& normal) {
  using namespace surfel_row;
  decltype(F() < F()) in_range;
  const Triple<F> p = to_camera<Lens::pinhole>(view, pose, settings, gaussian.mean, in_range);
  const SurfelShape<F> s = surfel_shape(view, pose, settings, gaussian, p);
  normal = s.normal;
  const F *row = sums.row, fx = F(view.fx), fy = F(view.fy), two = F(2.0f);
  const F inverse_z = F(1.0f) / p.z, k = s.scale, m = F(kRootHalfLog2E) * k, mz = m * p.z;
  // sigma = (n_u^2 + n_v^2) / n^2 / log2(e).
  const F factor = F(kTwoLn2);
  const F v_u = factor * row[kU], v_v = factor * row[kV], v_n = factor * row[kN];
  const F v_ux = factor * row[kMoments], v_uy = factor * row[kMoments + 1];
  const F v_vx = factor * row[kMoments + 2], v_vy = factor * row[kMoments + 3];
  const F v_nx = factor * row[kNx], v_ny = factor * row[kNy];
  const F nx = k * fma(s.p1, s.b.z, -(s.q1 * s.a.z)), ny = k * fma(s.a.z, s.q0, -(s.b.z * s.p0));
  GaussianGradient<F> to{};
  to.opacity = -row[kOne] / max(gaussian.opacity, F(1e-30f));
  // Gradient of the projected mean through n_u and n_v alone.
  const F mean_x = mz * fma(s.p1, v_v, -(s.q1 * v_u)), mean_y = mz * fma(s.q0, v_u, -(s.p0 * v_v));
  to.mean2d = {fma(mz, fma(s.b.z, v_uy, -(s.a.z * v_vy)), mean_x), fma(mz, fma(s.a.z, v_vx, -(s.b.z * v_ux)), mean_y)};
  const F v_cx = fnma(two, row[kDisc], sums.extra.x), v_cy = fnma(two, row[kDisc + 1], sums.extra.y);
  const F v_px = mean_x - nx * v_n + v_cx, v_py = mean_y - ny * v_n + v_cy;
  // Gradients of the rows of the matrix.
  F v_p0 = fma(mz, v_vy, k * fma(s.q1, v_n, -(s.b.z * v_ny)));
  F v_q0 = fnma(mz, v_uy, k * fma(s.a.z, v_ny, -(s.p1 * v_n)));
  F v_p1 = fnma(mz, v_vx, k * fma(s.b.z, v_nx, -(s.q0 * v_n)));
  F v_q1 = fma(mz, v_ux, k * fma(s.p0, v_n, -(s.a.z * v_nx)));
  F v_az = k * fma(s.q0, v_ny, -(s.q1 * v_nx)), v_bz = k * fma(s.p1, v_nx, -(s.p0 * v_ny));
  F v_z = m * (fma(s.q1, v_ux, -(s.q0 * v_uy)) + fma(s.p0, v_vy, -(s.p1 * v_vx)));
  // Backpropagates through the box's centre.
  const F ax = s.divisor * v_cx, ay = s.divisor * v_cy;
  v_p0 = fma(ax, s.a.z, v_p0);
  v_q0 = fma(ax, s.b.z, v_q0);
  v_p1 = fma(ay, s.a.z, v_p1);
  v_q1 = fma(ay, s.b.z, v_q1);
  const F twice = -two * fma(ax, s.offset_x, ay * s.offset_y);
  v_az = v_az + fma(s.p0, ax, fma(s.p1, ay, s.a.z * twice));
  v_bz = v_bz + fma(s.q0, ax, fma(s.q1, ay, s.b.z * twice));
  v_z = fnma(p.z, twice, v_z);
  // Gradients in the camera's frame.
  const F v_tx = fx * (v_px - fma(s.a.z, v_p0, s.b.z * v_q0)), v_ty = fy * (v_py - fma(s.a.z, v_p1, s.b.z * v_q1));
  to.fx = fma(s.tx, v_px, fma(s.p0, v_p0, s.q0 * v_q0) / fx);
  to.fy = fma(s.ty, v_py, fma(s.p1, v_p1, s.q1 * v_q1) / fy);
  to.cx = v_px;
  to.cy = v_py;
  const Triple<F> v_a = {fx * v_p0, fy * v_p1, v_az - fma(s.tx * fx, v_p0, s.ty * fy * v_p1)};
  const Triple<F> v_b = {fx * v_q0, fy * v_q1, v_bz - fma(s.tx * fx, v_q0, s.ty * fy * v_q1)};
  const F along = fma(s.tx, v_tx, s.ty * v_ty) * inverse_z;
  const Triple<F> v_p = {v_tx * inverse_z, v_ty * inverse_z, v_z - along + sums.depth};
  surfel_axes_backward(pose, settings, gaussian, s, v_p, v_a, v_b, sums.normal, to);
  return to;
}

LG_END
