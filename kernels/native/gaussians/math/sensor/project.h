// Projection of a Gaussian to a sensor's film, by sigma points or by the Jacobian of its lens, and its gradients.
// Templates on the number type up to the ellipse; the rest is shared with other views, in floats.
#pragma once

#include "gaussians/math/project_backward.h"
#include "gaussians/math/sensor/linear.h"
#include "gaussians/math/sensor/radial.h"

LG_BEGIN_ENGINE(gaussians)

// Calls run(lens) for the sensor's family of lenses.
template <class Run>
LG_INLINE void with_sensor_lens(SensorLens lens, Run&& run) {
  switch (lens) {
    case SensorLens::pinhole:
      return run(PerfectPinhole());
    case SensorLens::opencv:
      return run(OpenCVPinhole());
    case SensorLens::orthographic:
      return run(Orthographic());
    case SensorLens::fisheye:
      return run(Fisheye());
    case SensorLens::ftheta:
      return run(FTheta());
    case SensorLens::lidar:
      return;  // A lidar has no film, only rays.
  }
}
// Calls run(lens) for the sensor's family of lenses, including lidars.
template <class Run>
LG_INLINE void with_any_sensor_lens(SensorLens lens, Run&& run) {
  if (lens == SensorLens::lidar) return run(SpinningLidar());
  with_sensor_lens(lens, static_cast<Run&&>(run));
}

// The ellipse on the film.
template <class F>
struct SensorFootprint {
  F x, y, depth;
  F a, b, c;       // Covariance with eps2d: xx, xy, yy.
  F sharp, schur;  // det / c, without and with eps2d.
};

// The depth by which Gaussians are sorted and culled: at the middle of the exposure.
template <class D>
struct Middle {
  Seen<D> seen;  // The point as seen, without a pixel.
  D depth;
  MaskOf<D> in_range;
};
template <class D>
LG_INLINE Middle<D> middle_of(const SensorPlace& at, const Body<D>& body) {
  const Sensor& s = at.sensor;
  Middle<D> m;
  m.seen.at = is_rolling(s) ? instant_at(s, D(0.5)) : Instant<D>{D(0.0), D(0.0), D(1.0)};
  m.seen.point = at_instant(s, m.seen.at, moved(body.motion, m.seen.at.time, body.centre));
  const D distance = sqrt(dot(m.seen.point, m.seen.point)), z = m.seen.point.z;
  m.depth = at.settings.distance_order ? distance : z;
  const D limited = at.settings.distance_order && s.behind ? distance : z;
  m.in_range = (limited >= D(at.settings.near)) & (limited <= D(at.settings.far));
  return m;
}

// Sets the ellipse from the mean and the covariance, of sigma points or by the Jacobian.
template <class D, class Moments>
LG_INLINE void set_ellipse(const Settings& settings, const Moments& p, SensorFootprint<D>& f) {
  f.x = p.mean.x;
  f.y = p.mean.y;
  f.a = p.xx + D(settings.eps2d);
  f.b = p.xy;
  f.c = p.yy + D(settings.eps2d);
  const D inverse = D(1.0) / f.c;
  f.sharp = fma(p.xx, p.yy, -(p.xy * p.xy)) * inverse;
  f.schur = fma(f.a, f.c, -(f.b * f.b)) * inverse;
}

// Computes the ellipse; returns whether the Gaussian is in the view, before tests of the ellipse.
template <class Lens, class D>
LG_INLINE MaskOf<D> sensor_footprint(const SensorPlace& at, const Gaussian<D>& gaussian, SensorFootprint<D>& f) {
  const Body<D> body = body_of(at, gaussian);
  const Middle<D> middle = middle_of(at, body);
  f.depth = middle.depth;
  const auto visible = middle.in_range & body.solid;
  f.x = f.y = f.b = D(0.0);
  f.a = f.c = f.sharp = f.schur = D(1.0);
  if (!any(visible)) return visible;
  if constexpr (!std::is_same_v<Lens, SpinningLidar>) {
    if (at.settings.by_jacobian) {
      const Linear<D> l = linear<Lens>(at, body);
      set_ellipse(at.settings, l, f);
      return visible & l.valid;
    }
  }
  const SigmaPoints<D> p = sigma_points<Lens>(at, body);
  set_ellipse(at.settings, p, f);
  return visible & p.valid;
}

// gsplat's radii; with sigma points they are based on the opacity of the sharper ellipse (sensors spec section 1).
template <class F>
LG_INLINE void gsplat_radii(const Settings& settings, const SensorFootprint<F>& f, Projected<F>& g) {
  const F zero = F(0.0f);
  const F ratio = select(g.visible, f.sharp / f.schur, F(1.0f));
  const F factor = settings.by_jacobian ? F(1.0f) : sqrt(max(ratio, F(kMinCompensationSquared)));
  const F shown = g.opacity * factor;
  const F above = log2_positive(max(shown, F(1e-30f))) - log2_positive(F(settings.alpha_min));
  const F reach = min(sqrt(F(kTwoLn2) * max(above, zero)), F(3.33f));
  g.radius_x = ceil_whole(min(reach * sqrt(max(f.a, zero)), F(1e6f)));
  g.radius_y = ceil_whole(min(reach * sqrt(max(f.c, zero)), F(1e6f)));
  const F clip = F(settings.radius_clip);
  g.visible = g.visible & (shown >= F(settings.alpha_min)) & ((g.radius_x > clip) | (g.radius_y > clip)) &
              (g.radius_x > zero) & (g.radius_y > zero);
}

// gsplat's rectangles of whole tiles.
template <class F>
LG_INLINE void gsplat_tiles(const View& view, const Settings& settings, Projected<F>& g) {
  const F zero = F(0.0f), size = F(1.0f * settings.tile_size), step = F(1.0f) / size;
  g.visible = g.visible & (g.x + g.radius_x > zero) & (g.x - g.radius_x < F(1.0f * view.width)) &
              (g.y + g.radius_y > zero) & (g.y - g.radius_y < F(1.0f * view.height));
  const auto first = [&](F low, int limit) { return -ceil_whole(-clamp(low, 0.0f, 1.0f * limit) * step) * size; };
  const auto last = [&](F high, int limit) { return ceil_whole(clamp(high, 0.0f, 1.0f * limit) * step) * size; };
  g.left = max(g.left, first(g.x - g.radius_x, view.width));
  g.right = min(g.right, last(g.x + g.radius_x, view.width));
  g.top = max(g.top, first(g.y - g.radius_y, view.height));
  g.bottom = min(g.bottom, last(g.y + g.radius_y, view.height));
}

// Along rays a Gaussian may be seen outside its ellipse: its pixels are found by other means.
template <class F>
LG_INLINE void ray_extent(const Settings& settings, Projected<F>& g) {
  g.radius_x = ceil_whole(min(g.half_width, F(1e6f)));
  g.radius_y = ceil_whole(min(g.half_height, F(1e6f)));
  const F clip = F(settings.radius_clip);
  g.visible = g.visible & (g.opacity >= F(settings.alpha_min)) & ((g.radius_x > clip) | (g.radius_y > clip));
}

// Completes the projection from an ellipse; g.visible must be set. An ellipse of angles (`kFilm` is false) meets no
// tiles.
template <bool kFilm = true, class F>
LG_INLINE void finish_sensor(const View& view, const Settings& settings, const SensorFootprint<F>& f, F opacity,
                             Projected<F>& g) {
  g.x = f.x;
  g.y = f.y;
  g.depth = f.depth;
  finish_ellipse(view, settings, f, opacity, g);
  if (settings.rays) {
    // The ellipse is not a bound here.
    g.left = g.top = F(0.0f);
    g.right = F(1.0f * view.width);
    g.bottom = F(1.0f * view.height);
  }
  if (settings.gsplat_bounds) {
    gsplat_radii(settings, f, g);
    if (kFilm) gsplat_tiles(view, settings, g);
  } else if (settings.rays) {
    ray_extent(settings, g);
  } else {
    gsplat_extent(view, settings, g);
  }
}

// The gradients of an ellipse: of the mean, and of the covariance, doubled.
template <class D>
struct EllipseGradient {
  Pair<D> mean;
  FilmGradient<D> film;
};
template <class D>
LG_INLINE EllipseGradient<D> ellipse_backward(const SensorFootprint<D>& f, const PixelSums<D>& sums) {
  Projected<D> g;
  const D slope = -f.b / f.c;
  g.a = D(1.0) / f.schur;
  g.b = slope * g.a;
  g.c = fma(slope, g.b, D(1.0) / f.c);
  EllipseGradient<D> v;
  v.mean = {fma(g.a, sums.x, g.b * sums.y) + sums.extra.x, fma(g.b, sums.x, g.c * sums.y) + sums.extra.y};
  v.film = conic_backward(g, sums);
  return v;
}

// Gradients of the mean, the quaternion and the slice, from the gradients of the centre at the start of the exposure
// and of the Gaussian's rotation; for a moving slice, as if the motion from its place at the start were fixed.
template <class D>
LG_INLINE void place_backward(const SensorPlace& at, const Gaussian<D>& gaussian, const Body<D>& body,
                              const Triple<D>& v_centre, const Matrix<D>& v_rotation, GaussianGradient<D>& to) {
  to.translation = transposed_times(matrix_of<D>(at.sensor.rotation), v_centre);
  to.mean = transposed_times(matrix_of<D>(at.slice.rotation), to.translation);
  to.quaternion = normalized_backward(body.unit, rotation_backward(body.unit.q, v_rotation));
  // The slice turns the centre and the axes: the gradient is theirs in the world times the turned vectors.
  const Matrix<D> of_axes = product_transposed(product(matrix_of<D>(at.slice.rotation), v_rotation), body.rotation);
  to.rotation = outer(to.translation, gaussian.mean) + of_axes;
}

// Gradients of the Gaussian and its slice, from the gradients of the centre and the axes at the start of the exposure.
template <class D>
LG_INLINE void body_backward(const SensorPlace& at, const Gaussian<D>& gaussian, const Body<D>& body,
                             const Triple<D>& v_centre, const Triple<D> (&v_axis)[3], GaussianGradient<D>& to) {
  const D stretch = D(axis_stretch(at.settings));
  // Columns in the slice's frame.
  const Triple<D> x = scaled(transposed_times(body.to_camera, v_axis[0]), stretch);
  const Triple<D> y = scaled(transposed_times(body.to_camera, v_axis[1]), stretch);
  const Triple<D> z = scaled(transposed_times(body.to_camera, v_axis[2]), stretch);
  const Matrix<D> v = {{x.x, y.x, z.x}, {x.y, y.y, z.y}, {x.z, y.z, z.z}};
  const Matrix<D>& r = body.rotation;
  to.scale = times(r.x, v.x) + times(r.y, v.y) + times(r.z, v.z);
  const Matrix<D> v_rotation = {times(v.x, gaussian.scale), times(v.y, gaussian.scale), times(v.z, gaussian.scale)};
  place_backward(at, gaussian, body, v_centre, v_rotation, to);
}

// The gradient of the centre at the start of the exposure, from the depth's gradient.
template <class D, class Add>
LG_INLINE Triple<D> depth_backward(const SensorPlace& at, const Body<D>& body, D v_depth, D v_inverse_depth,
                                   const Add& add) {
  const D zero = D(0.0);
  const Middle<D> middle = middle_of(at, body);
  const D inverse = D(1.0) / middle.depth, v = fma(-v_inverse_depth, inverse * inverse, v_depth);
  const Triple<D> ahead = {zero, zero, D(1.0)};
  const Triple<D> v_middle = scaled(at.settings.distance_order ? scaled(middle.seen.point, inverse) : ahead, v);
  const Triple<D> placed = moved(body.motion, middle.seen.at.time, body.centre);
  return motion_backward(at.sensor, body.motion, middle.seen, body.centre, placed, v_middle, add);
}

// Gradients of the centre and the axes at the start of the exposure, through the sigma points.
template <class Lens, class D, class Add>
LG_INLINE void sigma_points_backward(const SensorPlace& at, const Body<D>& body, const SigmaPoints<D>& p,
                                     const EllipseGradient<D>& v, const Add& add, Triple<D>& v_centre,
                                     Triple<D> (&v_axis)[3]) {
  const Unscented& u = at.settings.unscented;
  const D xx = v.film.xx, xy = v.film.xy, yy = v.film.yy, zero = D(0.0);
  const Pair<D> v_mean = mean_of_covariance(u, p, v.mean, xx, xy, yy);
  v_centre = v_axis[0] = v_axis[1] = v_axis[2] = {zero, zero, zero};
  for (int i = 0; i < kSigmaPoints; ++i) {
    const Seen<D>& seen = p.seen[i];
    const Jacobian<D> j = Optics<Lens>::jacobian(at.sensor, seen.point);
    const Triple<D> start = sigma_point(body, i), placed = moved(body.motion, seen.at.time, start);
    const Pair<D> v_found = sigma_backward(u, p, v_mean, xx, xy, yy, i);
    const Pair<D> v_pixel = time_backward(at.view, at.sensor, body.motion, seen, placed, j, v_found);
    if (add.wanted()) Optics<Lens>::parameters(at.sensor, seen.point, v_pixel, add);
    const Triple<D> v_start =
        motion_backward(at.sensor, body.motion, seen, start, placed, pulled_back(j, v_pixel), add);
    v_centre = v_centre + v_start;
    if (i > 0) v_axis[(i - 1) % 3] = v_axis[(i - 1) % 3] + scaled(v_start, D(i < 4 ? 1.0 : -1.0));
  }
}

// All gradients except the spherical harmonics'. `v_inverse_depth` is the gradient of 1 / depth. The Gaussian must be
// visible. Calls add(index, value) for the sums of the view (see kSensorSums) if add.wanted().
template <class Lens, class D, class Add>
LG_INLINE GaussianGradient<D> sensor_backward(const SensorPlace& at, const Gaussian<D>& gaussian,
                                              const PixelSums<D>& sums, D v_inverse_depth, const Add& add) {
  const Body<D> body = body_of(at, gaussian);
  GaussianGradient<D> to{};
  to.opacity = -sums.one / max(gaussian.opacity, D(1e-30));
  to.fx = to.fy = to.cx = to.cy = D(0.0);
  Triple<D> v_centre, v_axis[3];
  SensorFootprint<D> f;
  if (at.settings.by_jacobian) {
    const Linear<D> l = linear<Lens>(at, body);
    set_ellipse(at.settings, l, f);
    const EllipseGradient<D> v = ellipse_backward(f, sums);
    to.mean2d = v.mean;
    linear_backward<Lens>(at, body, l, v.mean, v.film, add, v_centre, v_axis);
  } else {
    const SigmaPoints<D> p = sigma_points<Lens>(at, body);
    set_ellipse(at.settings, p, f);
    const EllipseGradient<D> v = ellipse_backward(f, sums);
    to.mean2d = v.mean;
    if (at.settings.frozen_projection) return to;
    sigma_points_backward<Lens>(at, body, p, v, add, v_centre, v_axis);
  }
  v_centre = v_centre + depth_backward(at, body, sums.depth, v_inverse_depth, add);
  body_backward(at, gaussian, body, v_centre, v_axis, to);
  return to;
}

LG_END
