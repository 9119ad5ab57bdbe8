// The unscented transform: a Gaussian's seven sigma points, and the mean and covariance of their pixels (sensors spec
// section 1). In doubles: the first point has a weight of about -99.
#pragma once

#include "gaussians/math/project.h"
#include "gaussians/math/sensor/shutter.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr int kSigmaPoints = 7;

// A sensor's view, and a slice of the scene.
struct SensorPlace {
  const View& view;
  const Sensor& sensor;
  const SlicePose& slice;
  const Settings& settings;
};

// The distance of the sigma points from the mean in standard deviations; 1 for the Jacobian.
LG_INLINE double axis_stretch(const Settings& settings) {
  return (settings.by_jacobian ? 1.0 : std::sqrt(settings.unscented.spread)) * settings.scale_modifier;
}

// The least scale, and the least square of a quaternion's length, of what gsplat draws; along rays, thinner Gaussians
// are taken to be as thick.
inline constexpr double kThinnest = 1.1920929e-7;

// A Gaussian's centre and its axes times their lengths at the start of the exposure, in the camera's frame at that
// time, before its translation; and their inputs.
template <class D>
struct Body {
  Triple<D> centre;
  Triple<D> axis[3];   // Times axis_stretch.
  Matrix<D> rotation;  // Rotation of the Gaussian in its slice.
  UnitQuaternion<D> unit;
  Matrix<D> to_camera;  // Rotation from the slice, at the start.
  SliceMotion<double> motion;
  MaskOf<D> solid;  // False if gsplat's semantics leave the Gaussian out: it is flat, or has no rotation.
};

template <class D>
LG_INLINE Body<D> body_of(const SensorPlace& at, const Gaussian<D>& g) {
  const Sensor& s = at.sensor;
  const SlicePose& slice = at.slice;
  Body<D> b;
  const Matrix<D> camera = matrix_of<D>(s.rotation), world = matrix_of<D>(slice.rotation);
  b.to_camera = product(camera, world);
  b.motion = slice_motion(s, slice);
  b.centre = camera * (world * g.mean + triple_of<D>(slice.translation));
  b.unit = normalized(g.quaternion);
  b.rotation = rotation_of(b.unit.q);
  const Matrix<D> r = product(b.to_camera, b.rotation);
  const Triple<D> length = scaled(g.scale, D(axis_stretch(at.settings)));
  b.axis[0] = scaled(Triple<D>{r.x.x, r.y.x, r.z.x}, length.x);
  b.axis[1] = scaled(Triple<D>{r.x.y, r.y.y, r.z.y}, length.y);
  b.axis[2] = scaled(Triple<D>{r.x.z, r.y.z, r.z.z}, length.z);
  const D least = D(at.settings.frozen_projection ? kThinnest : -1.0);
  const Quaternion<D>& q = g.quaternion;
  b.solid = (g.scale.x > least) & (g.scale.y > least) & (g.scale.z > least) &
            (fma(q.w, q.w, fma(q.x, q.x, fma(q.y, q.y, q.z * q.z))) > least);
  return b;
}

// Number 0 is the centre, 1 to 3 lie along the axes, 4 to 6 against them.
template <class D>
LG_INLINE Triple<D> sigma_point(const Body<D>& b, int i) {
  if (i == 0) return b.centre;
  const Triple<D>& a = b.axis[(i - 1) % 3];
  const D sign = D(i < 4 ? 1.0 : -1.0);
  return {fma(sign, a.x, b.centre.x), fma(sign, a.y, b.centre.y), fma(sign, a.z, b.centre.z)};
}

template <class D>
struct SigmaPoints {
  Seen<D> seen[kSigmaPoints];
  Pair<D> mean;
  D xx, xy, yy;  // Covariance, without eps2d.
  MaskOf<D> valid;
};

template <class Lens, class D>
LG_INLINE SigmaPoints<D> sigma_points(const SensorPlace& at, const Body<D>& body) {
  const Sight<Lens> sight(at.view, at.sensor, at.settings, body.motion);
  const Unscented& u = at.settings.unscented;
  SigmaPoints<D> p;
  const bool rolls = is_rolling(at.sensor);
  Hint<D> hint;
  LG_UNROLL for (int i = 0; i < kSigmaPoints; ++i) {
    const Triple<D> point = sigma_point(body, i);
    if (!rolls) {
      sight.at_rest(point, p.seen[i]);
    } else {
      // A local copy: a call writes to memory, and on CUDA the array is in registers.
      Seen<D> seen;
      if (i == 0) {
        sight.find(point, hint, seen);
      } else {
        sight.find_beside(hint, point, seen);
      }
      p.seen[i] = seen;
    }
    p.seen[i].pixel = sight.film.beside(p.seen[0].pixel, p.seen[i].pixel);
    const auto valid = p.seen[i].valid;
    p.valid = i == 0 ? valid : u.require_all ? p.valid & valid : p.valid | valid;
  }
  // Differences from the first pixel have the same mean, since the weights add up to 1.
  const Pair<D> origin = p.seen[0].pixel;
  D x = D(0.0), y = D(0.0);
  for (int i = 1; i < kSigmaPoints; ++i) {
    x = x + (p.seen[i].pixel.x - origin.x);
    y = y + (p.seen[i].pixel.y - origin.y);
  }
  const D weight = D(u.weight), first = D(u.first_covariance);
  x = x * weight;
  y = y * weight;
  p.xx = p.xy = p.yy = D(0.0);
  for (int i = 1; i < kSigmaPoints; ++i) {
    const D dx = p.seen[i].pixel.x - origin.x - x, dy = p.seen[i].pixel.y - origin.y - y;
    p.xx = fma(dx, dx, p.xx);
    p.xy = fma(dx, dy, p.xy);
    p.yy = fma(dy, dy, p.yy);
  }
  p.xx = fma(first * x, x, weight * p.xx);
  p.xy = fma(first * x, y, weight * p.xy);
  p.yy = fma(first * y, y, weight * p.yy);
  p.mean = {origin.x + x, origin.y + y};
  return p;
}

// The gradient of a point's pixel, given the gradients of the mean (to which `mean_of_covariance` was applied) and of
// the covariance, doubled.
template <class D>
LG_INLINE Pair<D> sigma_backward(const Unscented& u, const SigmaPoints<D>& p, const Pair<D>& v_mean, D xx, D xy, D yy,
                                 int i) {
  const D mean = D(i == 0 ? u.first_mean : u.weight), square = D(i == 0 ? u.first_covariance : u.weight);
  const D dx = square * (p.seen[i].pixel.x - p.mean.x), dy = square * (p.seen[i].pixel.y - p.mean.y);
  return {fma(mean, v_mean.x, fma(xx, dx, xy * dy)), fma(mean, v_mean.y, fma(xy, dx, yy * dy))};
}
// The gradient that the covariance's use of the mean adds to the mean's gradient.
template <class D>
LG_INLINE Pair<D> mean_of_covariance(const Unscented& u, const SigmaPoints<D>& p, const Pair<D>& v, D xx, D xy, D yy) {
  const D excess = D(u.first_covariance - u.first_mean);
  const D dx = excess * (p.seen[0].pixel.x - p.mean.x), dy = excess * (p.seen[0].pixel.y - p.mean.y);
  return {v.x - fma(xx, dx, xy * dy), v.y - fma(xy, dx, yy * dy)};
}

LG_END
