// Gradients of the projection with respect to the Gaussian, the pose and the lens (spec sections 3.2 to 3.6). Templates
// on the number type.
#pragma once

#include "gaussians/math/project.h"

LG_BEGIN_ENGINE(gaussians)

// The gradients that a Gaussian receives from a view's pixels: sums over the pixels as in record.h, and the gradient of
// its depth.
template <class F>
struct PixelSums {
  F one, x, y, xx, xy, yy;
  F depth;
  Pair<F> extra;  // Further gradient of the projected mean, not from pixels.
};

template <class F>
struct GaussianGradient {
  Triple<F> mean;
  Quaternion<F> quaternion;
  Triple<F> scale;
  Symmetric<F> covariance;
  F opacity;
  Matrix<F> rotation;  // Gradient of the pose's rotation.
  Triple<F> translation;
  F fx, fy, cx, cy;
  Pair<F> mean2d;  // Pixels.
};

// a x + b y.
template <class F>
LG_INLINE Triple<F> combined(F a, const Triple<F>& x, F b, const Triple<F>& y) {
  return {fma(a, x.x, b * y.x), fma(a, x.y, b * y.y), fma(a, x.z, b * y.z)};
}

// The gradient of the covariance on the film, a symmetric 2x2 matrix, doubled: the factor of its square root.
template <class F>
struct FilmGradient {
  F xx, xy, yy;
};

// Backpropagates through the conic: -Q M Q, with M the second moments.
template <class F>
LG_INLINE FilmGradient<F> conic_backward(const Projected<F>& g, const PixelSums<F>& sums) {
  const F px = fma(g.a, sums.xx, g.b * sums.xy), py = fma(g.a, sums.xy, g.b * sums.yy);
  const F qx = fma(g.b, sums.xx, g.c * sums.xy), qy = fma(g.b, sums.xy, g.c * sums.yy);
  return {-fma(px, g.a, py * g.b), -fma(px, g.b, py * g.c), -fma(qx, g.b, qy * g.c)};
}

template <class F>
LG_INLINE FilmGradient<F> film_backward(const Settings& settings, const Footprint<F>& f, const Projected<F>& g,
                                        const PixelSums<F>& sums, F v_opacity, F opacity) {
  FilmGradient<F> v = conic_backward(g, sums);
  if (settings.antialiased) {
    const F ratio = f.sharp / f.schur, zero = F(0.0f), one = F(1.0f);
    const auto free = ratio > F(kMinCompensationSquared);
    const F rho = sqrt(select(free, ratio, one));
    // Twice v_rho / (2 rho).
    const F factor = select(free, v_opacity * opacity / rho, zero);
    const F sharper = one - rho * rho, blur = F(settings.eps2d) / (f.schur * f.c);
    v.xx = fma(factor, sharper * g.a - blur, v.xx);
    v.xy = fma(factor, sharper * g.b, v.xy);
    v.yy = fma(factor, sharper * g.c - blur, v.yy);
  }
  return v;
}

// v_J = v_W R^T and v_R = J^T v_W for W = J R, with R the rotation to the camera and v_W given as two rows.
template <class F>
LG_INLINE Jacobian<F> jacobian_gradient(const Matrix<F>& rotation, const Triple<F>& v_w0, const Triple<F>& v_w1) {
  return {rotation * v_w0, rotation * v_w1};
}
template <Lens kLens, class F>
LG_INLINE Matrix<F> rotation_gradient(const Jacobian<F>& j, const Triple<F>& v_w0, const Triple<F>& v_w1) {
  const Triple<F> z = combined(j.x.z, v_w0, j.y.z, v_w1);
  if constexpr (is_skew(kLens)) return {combined(j.x.x, v_w0, j.y.x, v_w1), combined(j.x.y, v_w0, j.y.y, v_w1), z};
  return {scaled(v_w0, j.x.x), scaled(v_w1, j.y.y), z};
}

template <class F>
LG_INLINE Symmetric<F> covariance_backward(const Footprint<F>& f, const FilmGradient<F>& v) {
  const Triple<F> r0 = combined(v.xx, f.t0, v.xy, f.t1), r1 = combined(v.xy, f.t0, v.yy, f.t1);
  // Half of r0 t0^T + r1 t1^T; entries off the diagonal count twice.
  const F half = F(0.5f);
  return {half * fma(r0.x, f.t0.x, r1.x * f.t1.x), fma(r0.x, f.t0.y, r1.x * f.t1.y),
          fma(r0.x, f.t0.z, r1.x * f.t1.z),        half * fma(r0.y, f.t0.y, r1.y * f.t1.y),
          fma(r0.y, f.t0.z, r1.y * f.t1.z),        half * fma(r0.z, f.t0.z, r1.z * f.t1.z)};
}

template <class F>
LG_INLINE Matrix<F> outer(const Triple<F>& a, const Triple<F>& b) {
  return {scaled(b, a.x), scaled(b, a.y), scaled(b, a.z)};
}
template <class F>
LG_INLINE Matrix<F> operator+(const Matrix<F>& a, const Matrix<F>& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}

template <Lens kLens, bool kCovariance, class F>
LG_INLINE Jacobian<F> shape_backward(const Pose& pose, const Settings& settings, const Gaussian<F>& gaussian,
                                     const Footprint<F>& f, const FilmGradient<F>& v, GaussianGradient<F>& to) {
  const Triple<F> v_t0 = combined(v.xx, f.t0, v.xy, f.t1), v_t1 = combined(v.xy, f.t0, v.yy, f.t1);
  Triple<F> v_w0, v_w1;
  if constexpr (kCovariance) {
    to.covariance = covariance_backward(f, v);
    v_w0 = gaussian.covariance * v_t0;
    v_w1 = gaussian.covariance * v_t1;
  } else {
    const F modifier = F(settings.scale_modifier);
    const Triple<F> length = scaled(gaussian.scale, modifier);
    const Matrix<F> v_axes = {combined(f.w0.x, v_t0, f.w1.x, v_t1), combined(f.w0.y, v_t0, f.w1.y, v_t1),
                              combined(f.w0.z, v_t0, f.w1.z, v_t1)};
    const Matrix<F>& r = f.rotation;
    to.scale = times(r.x, v_axes.x) + times(r.y, v_axes.y) + times(r.z, v_axes.z);
    if (!settings.fork_gradients) to.scale = scaled(to.scale, modifier);
    const Matrix<F> v_rotation = {times(v_axes.x, length), times(v_axes.y, length), times(v_axes.z, length)};
    to.quaternion = rotation_backward(f.unit.q, v_rotation);
    if (!settings.inria) to.quaternion = normalized_backward(f.unit, to.quaternion);
    v_w0 = f.axes * v_t0;
    v_w1 = f.axes * v_t1;
  }
  to.rotation = rotation_gradient<kLens>(f.j, v_w0, v_w1);
  return jacobian_gradient(rotation_of<F>(pose), v_w0, v_w1);
}

// Backpropagates through Inria's projection to the mean (spec section 3.5); sets `v_h` to the gradient of h.
template <class F>
LG_INLINE Triple<F> inria_projection_backward(const View& view, const Triple<F>& mean, const Pair<F>& v_pixel,
                                              Triple<F>& v_h) {
  const Triple<F> h = inria_projection(view, mean);
  const F vx = v_pixel.x * F(0.5f * static_cast<float>(view.width)) * h.z;
  const F vy = v_pixel.y * F(0.5f * static_cast<float>(view.height)) * h.z;
  v_h = {vx, vy, -h.z * fma(vx, h.x, vy * h.y)};
  const float* k = view.projection;
  const Matrix<F> columns = {{F(k[0]), F(k[1]), F(k[2])}, {F(k[4]), F(k[5]), F(k[6])}, {F(k[8]), F(k[9]), F(k[10])}};
  return transposed_times(columns, v_h);
}

// All gradients except the spherical harmonics'. `v_h` receives the gradient of Inria's h, if the view has one. The
// Gaussian must be visible.
template <Lens kLens, bool kCovariance, class F>
LG_INLINE GaussianGradient<F> project_backward(const View& view, const Pose& pose, const Settings& settings,
                                               const Gaussian<F>& gaussian, const PixelSums<F>& sums, Triple<F>& v_h) {
  const F zero = F(0.0f);
  decltype(F() < F()) in_range;
  const Triple<F> p = to_camera<kLens>(view, pose, settings, gaussian.mean, in_range);
  const Footprint<F> f = footprint_of<kLens, kCovariance>(view, pose, settings, gaussian, p);
  Projected<F> g;
  const F inverse_c = F(1.0f) / f.c, slope = -f.b * inverse_c;
  g.a = F(1.0f) / f.schur;
  g.b = slope * g.a;
  g.c = fma(slope, g.b, inverse_c);
  GaussianGradient<F> to;
  const F opacity = max(gaussian.opacity, F(1e-30f));
  F compensation = F(1.0f);
  if (settings.antialiased) compensation = sqrt(max(f.sharp * g.a, F(kMinCompensationSquared)));
  const F v_opacity = -sums.one / (opacity * compensation);
  to.opacity = v_opacity * compensation;
  to.mean2d = {fma(g.a, sums.x, g.b * sums.y) + sums.extra.x, fma(g.b, sums.x, g.c * sums.y) + sums.extra.y};
  const FilmGradient<F> v_film = film_backward(settings, f, g, sums, v_opacity, opacity);
  const Jacobian<F> v_j = shape_backward<kLens, kCovariance>(pose, settings, gaussian, f, v_film, to);
  const Pair<F> v_pixel = view.projected ? Pair<F>{zero, zero} : to.mean2d;
  CameraGradient<F> camera = camera_backward<kLens>(view, settings.fork_gradients, p, v_pixel, v_j, f.j);
  // The depth fork does not propagate the depth's gradient to the mean (spec section 6, item 1).
  if (!settings.fork_gradients) camera.point.z = camera.point.z + sums.depth;
  to.fx = camera.fx;
  to.fy = camera.fy;
  to.cx = camera.cx;
  to.cy = camera.cy;
  to.translation = camera.point;
  to.mean = transposed_times(rotation_of<F>(pose), camera.point);
  to.rotation = to.rotation + outer(camera.point, gaussian.mean);
  v_h = {zero, zero, zero};
  if (view.projected) to.mean = to.mean + inria_projection_backward(view, gaussian.mean, to.mean2d, v_h);
  return to;
}

LG_END
