// Projection of a Gaussian in the world to an ellipse in the image (spec sections 1.1 to 1.5). Templates on the number
// type.
#pragma once

#include "common/math/exp.h"
#include "gaussians/math/record.h"
#include "gaussians/math/shape.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr float kTwoLn2 = 1.3862944f;
inline constexpr float kMinCompensationSquared = 2.5e-5f;
inline constexpr int kInriaTile = 16;

template <class F>
struct Gaussian {
  Triple<F> mean;
  Quaternion<F> quaternion;  // Either this and `scale`,
  Triple<F> scale;
  Symmetric<F> covariance;  // or this.
  F opacity;
};

// The ellipse before it is cut to the film, with the values that led to it.
template <class F>
struct Footprint {
  Triple<F> p;  // Camera frame.
  Jacobian<F> j;
  UnitQuaternion<F> unit;
  Matrix<F> rotation;  // Rotation of the Gaussian in the world.
  Matrix<F> axes;      // Axes of the Gaussian times their lengths, as columns, in the world.
  Triple<F> w0, w1;    // Rows of the Jacobian with respect to the world.
  Triple<F> t0, t1;    // Rows of the 2x3 square root of the covariance on the film, without eps2d.
  F a, b, c;           // Covariance on the film: xx, xy, yy.
  F sharp, schur;      // det / c, without and with eps2d.
};

template <Lens kLens, class F>
LG_INLINE Triple<F> along(const Triple<F>& row, const Matrix<F>& m, bool is_x) {
  if constexpr (is_skew(kLens)) {
    return transposed_times(m, row);
  } else {
    const Triple<F>& axis = is_x ? m.x : m.y;
    const F first = is_x ? row.x : row.y;
    if constexpr (kLens == Lens::orthographic) return scaled(axis, first);
    return {fma(first, axis.x, row.z * m.z.x), fma(first, axis.y, row.z * m.z.y), fma(first, axis.z, row.z * m.z.z)};
  }
}

// a c - b b without cancellation (Kahan).
template <class F>
LG_INLINE F determinant(F a, F b, F c) {
  const F w = b * b;
  return fma(a, c, -w) + fma(-b, b, w);
}

template <Lens kLens, bool kCovariance, class F>
LG_INLINE Footprint<F> footprint_of(const View& view, const Pose& pose, const Settings& settings, const Gaussian<F>& g,
                                    const Triple<F>& p) {
  Footprint<F> f;
  f.p = p;
  f.j = jacobian_of<kLens>(view, p);
  const Matrix<F> camera = rotation_of<F>(pose);
  f.w0 = along<kLens>(f.j.x, camera, true);
  f.w1 = along<kLens>(f.j.y, camera, false);
  F xx, yy;
  if constexpr (kCovariance) {
    f.t0 = f.w0;
    f.t1 = f.w1;
    const Triple<F> s0 = g.covariance * f.t0, s1 = g.covariance * f.t1;
    xx = dot(f.t0, s0);
    yy = dot(f.t1, s1);
    f.b = dot(f.t0, s1);
  } else {
    if (settings.inria) {
      f.unit = {g.quaternion, F(1.0f)};
    } else {
      f.unit = normalized(g.quaternion);
    }
    f.rotation = rotation_of(f.unit.q);
    const Triple<F> length = scaled(g.scale, F(settings.scale_modifier));
    f.axes = {times(f.rotation.x, length), times(f.rotation.y, length), times(f.rotation.z, length)};
    f.t0 = transposed_times(f.axes, f.w0);
    f.t1 = transposed_times(f.axes, f.w1);
    xx = dot(f.t0, f.t0);
    yy = dot(f.t1, f.t1);
    f.b = dot(f.t0, f.t1);
  }
  const F eps = F(settings.eps2d);
  f.a = xx + eps;
  f.c = yy + eps;
  const F inverse = F(1.0f) / f.c;
  if constexpr (kCovariance) {
    f.sharp = max(determinant(xx, f.b, yy), F(0.0f)) * inverse;
  } else {
    const Triple<F> n = cross(f.t0, f.t1);
    f.sharp = dot(n, scaled(n, inverse));
  }
  f.schur = f.sharp + eps * (xx + f.c) * inverse;
  return f;
}

// The data for blending, and the values that callers may request.
template <class F>
struct Projected {
  F x, y, depth;
  F ux, uy, vy, log2_opacity;
  F half_width, half_height;   // Half size of the ellipse where alpha reaches alpha_min; pixels.
  F a, b, c;                   // Conic.
  F opacity;                   // Times the compensation.
  F radius_x, radius_y;        // Radii in the convention of the semantics; whole.
  F left, right, top, bottom;  // Pixels that it may reach, whole: [left, right) x [top, bottom).
  decltype(F() < F()) visible;
};

template <class F>
LG_INLINE F ceil_whole(F a) {
  const F rounded = round_whole(a);
  return select(rounded < a, rounded + F(1.0f), rounded);
}

// Pixels from `low` to `high`, widened by the rounding error and cut to [0, size).
template <class F>
LG_INLINE Pair<F> pixels_between(F low, F high, int size) {
  const float n = static_cast<float>(size), margin = 0.01f;
  return {ceil_whole(clamp(low - F(margin), 0.0f, n)), ceil_whole(clamp(high + F(margin), 0.0f, n))};
}

// Inria's squares of whole tiles (spec section 1.5).
template <class F>
LG_INLINE Pair<F> inria_tiles(F centre, F radius, int size) {
  const int tiles = (size + kInriaTile - 1) / kInriaTile;
  const F step = F(1.0f / kInriaTile), most = F(static_cast<float>(tiles)), zero = F(0.0f);
  const F low = -ceil_whole(-min(max((centre - radius) * step, zero), most));
  const F high = -ceil_whole(-min(max((centre + radius + F(kInriaTile - 1.0f)) * step, zero), most));
  return {low * F(static_cast<float>(kInriaTile)), min(high * F(static_cast<float>(kInriaTile)), F(1.0f * size))};
}

template <class F>
LG_INLINE void inria_extent(const View& view, const Settings& settings, const Footprint<F>& f, Projected<F>& g) {
  const F mid = F(0.5f) * (f.a + f.c), half = F(0.5f) * (f.a - f.c);
  const F lambda = mid + sqrt(max(fma(half, half, f.b * f.b), F(0.1f)));
  g.radius_x = g.radius_y = ceil_whole(min(F(3.0f) * sqrt(lambda), F(1e6f)));
  const F centre = F(settings.pixel_center);
  const Pair<F> columns = inria_tiles(g.x - centre, g.radius_x, view.width);
  const Pair<F> rows = inria_tiles(g.y - centre, g.radius_y, view.height);
  g.visible = g.visible & (columns.x < columns.y) & (rows.x < rows.y);
  g.left = max(g.left, columns.x);
  g.right = min(g.right, columns.y);
  g.top = max(g.top, rows.x);
  g.bottom = min(g.bottom, rows.y);
}

template <class F>
LG_INLINE void gsplat_extent(const View& view, const Settings& settings, Projected<F>& g) {
  g.radius_x = ceil_whole(min(g.half_width, F(1e6f)));
  g.radius_y = ceil_whole(min(g.half_height, F(1e6f)));
  const F clip = F(settings.radius_clip), zero = F(0.0f), edge = F(0.5f - settings.pixel_center);
  const F x = g.x + edge, y = g.y + edge;
  g.visible = g.visible & (g.opacity >= F(settings.alpha_min)) & ((g.radius_x > clip) | (g.radius_y > clip)) &
              (x + g.radius_x > zero) & (x - g.radius_x < F(1.0f * view.width)) & (y + g.radius_y > zero) &
              (y - g.radius_y < F(1.0f * view.height));
}

// Transforms a point to the camera's frame; `visible`: whether it is in the view's range of depths.
template <Lens kLens, class F>
LG_INLINE Triple<F> to_camera(const View& view, const Pose& pose, const Settings& settings, const Triple<F>& mean,
                              decltype(F() < F())& visible) {
  const Triple<F> p =
      rotation_of<F>(pose) * mean + Triple<F>{F(pose.translation[0]), F(pose.translation[1]), F(pose.translation[2])};
  const F near = F(settings.near);
  visible = (p.z <= F(settings.far)) & is_in_view<kLens>(view, p);
  visible = visible & (settings.inria ? p.z > near : p.z >= near);
  if constexpr (kLens != Lens::orthographic) visible = visible & (p.z > F(1e-12f));
  // Values computed from these must stay finite even if the point is not visible.
  const F zero = F(0.0f);
  return {select(visible, p.x, zero), select(visible, p.y, zero), select(visible, p.z, F(1.0f))};
}

// Inria's projection to pixels with the full projection matrix (spec section 1.1): h.x, h.y and 1 / (h.w + 1e-7).
template <class F>
LG_INLINE Triple<F> inria_projection(const View& view, const Triple<F>& mean) {
  const float* k = view.projection;
  const F x = dot({F(k[0]), F(k[1]), F(k[2])}, mean) + F(k[3]);
  const F y = dot({F(k[4]), F(k[5]), F(k[6])}, mean) + F(k[7]);
  const F w = dot({F(k[8]), F(k[9]), F(k[10])}, mean) + F(k[11]);
  return {x, y, F(1.0f) / (w + F(1e-7f))};
}

// Computes the fields that follow from the ellipse on the film: `f` has a, b, c, sharp and schur. g.x, g.y and
// g.visible must be set.
template <class F, class Ellipse>
LG_INLINE void finish_ellipse(const View& view, const Settings& settings, const Ellipse& f, F opacity,
                              Projected<F>& g) {
  const F large = F(1e30f), zero = F(0.0f), one = F(1.0f);
  g.visible = g.visible & (f.schur > zero) & (f.c > zero) & (f.a < large) & (f.c < large) & (f.schur < large) &
              (abs(g.x) < F(1e12f)) & (abs(g.y) < F(1e12f));
  const F inverse_c = one / f.c, slope = -f.b * inverse_c, inverse = one / f.schur;
  g.a = inverse;
  g.b = slope * inverse;
  g.c = fma(slope, g.b, inverse_c);
  g.ux = sqrt(F(kHalfLog2E) * inverse);
  g.uy = slope * g.ux;
  g.vy = sqrt(F(kHalfLog2E) * inverse_c);
  g.opacity = opacity;
  if (settings.antialiased) g.opacity = g.opacity * sqrt(max(f.sharp * inverse, F(kMinCompensationSquared)));
  g.log2_opacity = log2_positive(max(g.opacity, F(1e-30f)));
  const F above = g.log2_opacity - F(log2_positive(settings.alpha_min)), reach2 = F(kTwoLn2) * max(above, zero);
  g.half_width = sqrt(reach2 * f.a);
  g.half_height = sqrt(reach2 * f.c);
  const F centre = F(settings.pixel_center);
  const F x = g.x - centre, y = g.y - centre;
  const Pair<F> columns = pixels_between(x - g.half_width, x + g.half_width, view.width);
  const Pair<F> rows = pixels_between(y - g.half_height, y + g.half_height, view.height);
  g.left = columns.x;
  g.right = columns.y;
  g.top = rows.x;
  g.bottom = rows.y;
  // A Gaussian too faint for any pixel still counts as seen in Inria's convention.
  g.right = select(above >= zero, g.right, g.left);
}

template <Lens kLens, bool kCovariance, class F>
LG_INLINE Projected<F> project(const View& view, const Pose& pose, const Settings& settings,
                               const Gaussian<F>& gaussian) {
  Projected<F> g;
  const Triple<F> p = to_camera<kLens>(view, pose, settings, gaussian.mean, g.visible);
  const Footprint<F> f = footprint_of<kLens, kCovariance>(view, pose, settings, gaussian, p);
  g.depth = p.z;
  if (view.projected) {
    const Triple<F> h = inria_projection(view, gaussian.mean);
    const F one = F(1.0f), half = F(0.5f);
    const F centre = F(settings.pixel_center);
    g.x = ((h.x * h.z + one) * F(1.0f * view.width) - one) * half + centre;
    g.y = ((h.y * h.z + one) * F(1.0f * view.height) - one) * half + centre;
  } else {
    const Pair<F> pixel = pixel_of<kLens>(view, p);
    g.x = pixel.x;
    g.y = pixel.y;
  }
  finish_ellipse(view, settings, f, gaussian.opacity, g);
  if (settings.inria) {
    inria_extent(view, settings, f, g);
  } else {
    gsplat_extent(view, settings, g);
  }
  return g;
}

LG_END
