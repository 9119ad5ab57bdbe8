// Projection of a Gaussian to a sensor's film by the Jacobian of its lens at the mean (spec section 1.3), with a global
// shutter. The Jacobian's derivatives are those of the lens's own formulas along each axis of the Gaussian: since J a
// is the derivative of the pixel along a, the gradient of v J a with respect to the point and to the lens is the
// derivative along a of the gradient of v times the pixel.
#pragma once

#include <type_traits>

#include "common/math/dual.h"
#include "gaussians/math/sensor/opencv.h"
#include "gaussians/math/sensor/sigma_points.h"

LG_BEGIN_ENGINE(gaussians)

// Whether the Jacobian is taken at X/Z and Y/Z cut to the view's limits: a pinhole's Jacobian is unbounded.
template <class Lens>
inline constexpr bool kIsCut = std::is_same_v<Lens, PerfectPinhole> || std::is_same_v<Lens, OpenCVPinhole>;

// A point in front of the camera, cut to the view's limits.
template <class D>
struct Cut {
  Triple<D> point;
  Pair<D> at;  // X/Z and Y/Z.
  MaskOf<D> free_x, free_y;
};
template <class D>
LG_INLINE Cut<D> cut(const View& view, const Triple<D>& p) {
  const D inverse = D(1.0) / select(p.z > D(0.0), p.z, D(1.0)), x = p.x * inverse, y = p.y * inverse;
  Cut<D> c;
  c.at = {min(max(x, D(view.min_u)), D(view.max_u)), min(max(y, D(view.min_v)), D(view.max_v))};
  c.free_x = (c.at.x <= x) & (c.at.x >= x);
  c.free_y = (c.at.y <= y) & (c.at.y >= y);
  c.point = {select(c.free_x, p.x, c.at.x * p.z), select(c.free_y, p.y, c.at.y * p.z), p.z};
  return c;
}

template <class D>
struct Linear {
  Triple<D> point;  // The mean in the camera's frame.
  Cut<D> base;      // The point at which the Jacobian is taken.
  Jacobian<D> j;
  Pair<D> across[3];  // The Gaussian's axes on the film.
  Pair<D> mean;
  D xx, xy, yy;  // Covariance, without eps2d.
  MaskOf<D> valid;
};

template <class Lens, class D>
LG_INLINE Linear<D> linear(const SensorPlace& at, const Body<D>& body) {
  Linear<D> l;
  l.point = body.centre + triple_of<D>(at.sensor.translation);
  const OnFilm<D> film = Optics<Lens>::project(at.sensor, l.point);
  l.mean = film.pixel;
  l.valid = film.valid;
  l.base = cut(at.view, l.point);
  if constexpr (!kIsCut<Lens>) l.base.point = l.point;
  l.j = Optics<Lens>::jacobian(at.sensor, l.base.point);
  l.xx = l.xy = l.yy = D(0.0);
  for (int k = 0; k < 3; ++k) {
    const Pair<D> a = l.across[k] = product(l.j, body.axis[k]);
    l.xx = fma(a.x, a.x, l.xx);
    l.xy = fma(a.x, a.y, l.xy);
    l.yy = fma(a.y, a.y, l.yy);
  }
  return l;
}

// Adds the derivatives along a direction of the dual numbers passed to it.
template <class Add>
struct AlongDirection {
  const Add& add;
  template <class D>
  LG_INLINE void operator()(int index, const Dual<D>& value) const {
    add(index, value.slope);
  }
};

// Adds the gradient of v J a, with a an axis, with respect to the lens; returns the gradient with respect to the point
// at which the Jacobian is taken.
template <class Lens, class D, class Add>
LG_INLINE Triple<D> jacobian_backward(const Sensor& s, const Triple<D>& p, const Triple<D>& axis, const Pair<D>& v,
                                      const Add& add) {
  const Triple<Dual<D>> on = {{p.x, axis.x}, {p.y, axis.y}, {p.z, axis.z}};
  const Pair<Dual<D>> of = {{v.x, D(0.0)}, {v.y, D(0.0)}};
  if (add.wanted()) Optics<Lens>::parameters(s, on, of, AlongDirection<Add>{add});
  const Triple<Dual<D>> to = pulled_back(Optics<Lens>::jacobian(s, on), of);
  return {to.x.slope, to.y.slope, to.z.slope};
}

// The gradient of a point, from the cut point's gradient. The limits depend on the intrinsics: fx times a limit is a
// constant minus cx.
template <class Lens, class D, class Add>
LG_INLINE Triple<D> cut_backward(const Sensor& s, const Linear<D>& l, const Triple<D>& v, const Add& add) {
  if constexpr (!kIsCut<Lens>) return v;
  using namespace lens_parameter;
  const Cut<D>& c = l.base;
  const D zero = D(0.0), held_x = select(c.free_x, zero, v.x), held_y = select(c.free_y, zero, v.y);
  if (add.wanted()) {
    const D of_x = held_x * l.point.z * D(-1.0 / s.parameters[kFx]);
    const D of_y = held_y * l.point.z * D(-1.0 / s.parameters[kFy]);
    add(kFx, c.at.x * of_x);
    add(kFy, c.at.y * of_y);
    add(kCx, of_x);
    add(kCy, of_y);
  }
  return {v.x - held_x, v.y - held_y, fma(c.at.x, held_x, fma(c.at.y, held_y, v.z))};
}

// The gradients of the mean and the axes at the start of the exposure, given the gradients of the mean's pixel and,
// doubled, of the covariance. Adds the gradients of the lens and the pose.
template <class Lens, class D, class Add>
LG_INLINE void linear_backward(const SensorPlace& at, const Body<D>& body, const Linear<D>& l, const Pair<D>& v_mean,
                               const FilmGradient<D>& v, const Add& add, Triple<D>& v_centre, Triple<D> (&v_axis)[3]) {
  const Sensor& s = at.sensor;
  if (add.wanted()) Optics<Lens>::parameters(s, l.point, v_mean, add);
  v_centre = pulled_back(kIsCut<Lens> ? Optics<Lens>::jacobian(s, l.point) : l.j, v_mean);
  Triple<D> v_base = {D(0.0), D(0.0), D(0.0)}, spin = v_base;
  for (int k = 0; k < 3; ++k) {
    const Pair<D> a = l.across[k], v_across = {fma(v.xx, a.x, v.xy * a.y), fma(v.xy, a.x, v.yy * a.y)};
    v_axis[k] = pulled_back(l.j, v_across);
    v_base = v_base + jacobian_backward<Lens>(s, l.base.point, body.axis[k], v_across, add);
    spin = spin + cross(body.axis[k], v_axis[k]);
  }
  v_centre = v_centre + cut_backward<Lens>(s, l, v_base, add);
  if (!add.wanted()) return;
  const Instant<D> start = {D(0.0), D(0.0), D(1.0)};
  add_motion(s, start, spin + cross(body.centre, v_centre), v_centre, add);
}

LG_END
