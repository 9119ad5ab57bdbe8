// The ray that a pixel sees, in the camera's frame at the pixel's own time, and the gradients of the lens (sensors spec
// section 4). Each family of lenses has
//   unproject(lens, sensor, pixel) -> ray;   unproject_backward(lens, sensor, pixel, v_ray, add).
// Inverses are found by iterations and differentiated as implicit functions.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gaussians/math/sensor/opencv.h"
#include "gaussians/math/sensor/radial.h"
#include "gaussians/math/sensor/undistort.h"
#include "gaussians/math/sensor/windshield.h"

LG_BEGIN_ENGINE(gaussians)

template <class D>
struct CameraRay {
  Triple<D> origin, direction;  // The direction has length 1; 0 where there is no ray.
  MaskOf<D> valid;
};
template <class D>
struct RayGradient {
  Triple<D> origin, direction;
};

template <class D>
LG_INLINE Triple<D> masked(MaskOf<D> mask, const Triple<D>& v) {
  return {zero_unless(mask, v.x), zero_unless(mask, v.y), zero_unless(mask, v.z)};
}
template <class D>
LG_INLINE Triple<D> unit(const Triple<D>& v) {
  return scaled(v, D(1.0) / sqrt(dot(v, v)));
}

// (pixel - c) / f, and the gradients of f and c, given the result's gradient.
template <class D>
LG_INLINE Pair<D> image_of(const Sensor& s, const Pair<D>& pixel) {
  using namespace lens_parameter;
  const double* k = s.parameters;
  return {(pixel.x - D(k[kCx])) * D(1.0 / k[kFx]), (pixel.y - D(k[kCy])) * D(1.0 / k[kFy])};
}
template <class D, class Add>
LG_INLINE void image_backward(const Sensor& s, const Pair<D>& image, const Pair<D>& v, const Add& add) {
  using namespace lens_parameter;
  const D x = v.x * D(-1.0 / s.parameters[kFx]), y = v.y * D(-1.0 / s.parameters[kFy]);
  add(kFx, x * image.x);
  add(kFy, y * image.y);
  add(kCx, x);
  add(kCy, y);
}

// The direction (x, y, 1) / length, and its gradient.
template <class D>
LG_INLINE Triple<D> ahead(const Pair<D>& at) {
  return unit(Triple<D>{at.x, at.y, D(1.0)});
}
template <class D>
LG_INLINE Pair<D> ahead_backward(const Triple<D>& direction, const Triple<D>& v) {
  const D along = dot(direction, v);
  return {direction.z * fma(-along, direction.x, v.x), direction.z * fma(-along, direction.y, v.y)};
}

template <class D>
LG_INLINE CameraRay<D> unproject(PerfectPinhole, const Sensor& s, const Pair<D>& pixel) {
  const D zero = D(0.0);
  return {{zero, zero, zero}, ahead(image_of(s, pixel)), everywhere(pixel.x)};
}
template <class D, class Add>
LG_INLINE void unproject_backward(PerfectPinhole, const Sensor& s, const Pair<D>& pixel, const RayGradient<D>& v,
                                  const Add& add) {
  const Pair<D> image = image_of(s, pixel);
  image_backward(s, image, ahead_backward(ahead(image), v.direction), add);
}

template <class D>
LG_INLINE CameraRay<D> unproject(Orthographic, const Sensor& s, const Pair<D>& pixel) {
  const Pair<D> image = image_of(s, pixel);
  const D zero = D(0.0);
  return {{image.x, image.y, zero}, {zero, zero, D(1.0)}, everywhere(pixel.x)};
}
template <class D, class Add>
LG_INLINE void unproject_backward(Orthographic, const Sensor& s, const Pair<D>& pixel, const RayGradient<D>& v,
                                  const Add& add) {
  image_backward(s, image_of(s, pixel), Pair<D>{v.origin.x, v.origin.y}, add);
}

// gsplat's inverse: `steps` steps of Newton's method, whose last step must be short; then two more for the last digits.
template <class D>
struct Solved {
  D x;
  MaskOf<D> done;
};
template <class D, class Function>
LG_INLINE Solved<D> newton_inverse(const Function& f, D y, D x, int steps) {
  Solved<D> s = {x, x < x};
  for (int i = 0; i < steps; ++i) {
    const Pair<D> at = f(s.x);
    const D step = (at.x - y) / at.y;
    s.x = select(s.done, s.x, s.x - step);
    s.done = s.done | (abs(step) < D(1e-6));
  }
  for (int i = 0; i < 2; ++i) {
    const Pair<D> at = f(s.x);
    s.x = select(s.done, s.x - (at.x - y) / at.y, s.x);
  }
  return s;
}

template <class D>
LG_INLINE CameraRay<D> unproject(OpenCVPinhole, const Sensor& s, const Pair<D>& pixel, Neighbour<D>* near = nullptr) {
  const Pair<D> image = image_of(s, pixel);
  const Undistorted<D> u = near == nullptr ? undistort(s, image) : undistort_beside(s, image, *near);
  const D zero = D(0.0);
  return {{zero, zero, zero}, masked(u.valid, ahead(u.at)), u.valid};
}
template <class D, class Add>
LG_INLINE void unproject_backward(OpenCVPinhole, const Sensor& s, const Pair<D>& pixel, const RayGradient<D>& v,
                                  const Add& add) {
  const Pair<D> image = image_of(s, pixel);
  const Undistorted<D> u = undistort(s, image);
  const Pair<D> v_at = masked<D>(u.valid, ahead_backward(ahead(u.at), v.direction));
  const Pair<D> v_image = masked<D>(u.valid, Pair<D>{fma(u.inverse.xx, v_at.x, u.inverse.yx * v_at.y),
                                                     fma(u.inverse.xy, v_at.x, u.inverse.yy * v_at.y)});
  OpenCVPinhole::coefficients(OpenCVPinhole::bent(s, u.at.x, u.at.y), Pair<D>{-v_image.x, -v_image.y}, add);
  image_backward(s, image, v_image, add);
}

// A direction at an angle from the axis; `per_distance` is d angle / d |image|.
template <class D>
struct PolarRay {
  D distance, ex, ey;  // Length of the image's vector and its direction, 0 on the axis.
  D angle, per_distance;
  MaskOf<D> valid;
};
template <class D>
LG_INLINE PolarRay<D> polar_image(const Pair<D>& image) {
  PolarRay<D> q;
  q.distance = sqrt(max(fma(image.x, image.x, image.y * image.y), D(1e-300)));
  const auto away = q.distance > D(1e-6);
  q.ex = zero_unless(away, image.x / q.distance);
  q.ey = zero_unless(away, image.y / q.distance);
  return q;
}
template <class D>
LG_INLINE Triple<D> direction_of(const PolarRay<D>& q) {
  const SineCosine<D> a = sine_cosine(zero_unless(q.valid, q.angle));
  const auto away = q.distance > D(1e-6);
  return masked(q.valid, Triple<D>{a.sine * q.ex, a.sine * q.ey, select(away, a.cosine, D(1.0))});
}
// The gradients of the angle and of the image.
template <class D>
struct PolarGradient {
  D angle;
  Pair<D> image;
};
template <class D>
LG_INLINE PolarGradient<D> polar_backward(const PolarRay<D>& q, const Triple<D>& given) {
  const Triple<D> v = masked(q.valid, given);
  const SineCosine<D> a = sine_cosine(zero_unless(q.valid, q.angle));
  const D outward = fma(q.ex, v.x, q.ey * v.y), angle = fma(a.cosine, outward, -(a.sine * v.z));
  const auto away = q.distance > D(1e-6);
  const D ratio = select(away, a.sine / select(away, q.distance, D(1.0)), q.per_distance);
  const D along = fma(angle, q.per_distance, -(ratio * outward));
  return {angle, {fma(ratio, v.x, q.ex * along), fma(ratio, v.y, q.ey * along)}};
}

template <class D>
LG_CALLED PolarRay<D> polar_ray(Fisheye, const Sensor& s, const Pair<D>& image) {
  PolarRay<D> q = polar_image(image);
  const auto f = [&](D angle) { return Fisheye::distance(s, angle); };
  if (s.monotone) {
    const double top = std::min(s.limit * (1.0 - 1e-9), 1e3);
    q.valid = f(D(top)).x > q.distance;
    q.angle = rising_inverse(f, zero_unless(q.valid, q.distance), q.distance, top);
  } else {
    const Solved<D> solved = newton_inverse(f, q.distance, q.distance * D(s.guess), 20);
    q.angle = solved.x;
    q.valid = solved.done & (q.angle >= D(0.0)) & (q.angle < D(s.limit));
  }
  q.angle = select(q.valid, q.angle, D(0.5));
  q.per_distance = D(1.0) / f(q.angle).y;
  return q;
}
template <class D>
LG_INLINE CameraRay<D> unproject(Fisheye lens, const Sensor& s, const Pair<D>& pixel) {
  const PolarRay<D> q = polar_ray(lens, s, image_of(s, pixel));
  const D zero = D(0.0);
  return {{zero, zero, zero}, direction_of(q), q.valid};
}
template <class D, class Add>
LG_INLINE void unproject_backward(Fisheye lens, const Sensor& s, const Pair<D>& pixel, const RayGradient<D>& v,
                                  const Add& add) {
  const Pair<D> image = image_of(s, pixel);
  const PolarRay<D> q = polar_ray(lens, s, image);
  const PolarGradient<D> g = polar_backward(q, v.direction);
  D power = -g.angle * q.per_distance * q.angle;
  for (int i = 0; i < 4; ++i) {
    power = power * (q.angle * q.angle);
    add(lens_parameter::kRadial + i, power);
  }
  image_backward(s, image, g.image, add);
}

// Image before the linear map.
template <class D>
LG_INLINE Pair<D> image_of(FTheta, const Sensor& s, const Pair<D>& pixel) {
  using namespace lens_parameter;
  const double c = s.parameters[kLinear], d = s.parameters[kLinear + 1], e = s.parameters[kLinear + 2];
  const D x = pixel.x - D(s.parameters[kCx]), y = pixel.y - D(s.parameters[kCy]), inverse = D(1.0 / (c - d * e));
  return {(x - D(d) * y) * inverse, (D(c) * y - D(e) * x) * inverse};
}
template <class D>
LG_CALLED PolarRay<D> polar_ray(FTheta, const Sensor& s, const Pair<D>& image) {
  PolarRay<D> q = polar_image(image);
  const auto forward = [&](D angle) { return polynomial<6>(s.parameters + lens_parameter::kAngleToDistance, angle); };
  const auto backward = [&](D far) { return polynomial<6>(s.parameters + lens_parameter::kDistanceToAngle, far); };
  if (s.inverse_reference) {
    const Pair<D> found = backward(q.distance);
    q.angle = found.x;
    q.per_distance = found.y;
    q.valid = everywhere(q.angle);
    if (s.monotone) q.valid = (q.angle < D(s.limit)) & (q.distance < D(s.distance_limit));
    // Clamped to the domain of sine_cosine; no lens comes near the limit.
    q.angle = min(max(q.angle, D(-1e3)), D(1e3));
    return q;
  }
  if (s.monotone) {
    const double top = std::min(s.limit * (1.0 - 1e-9), 1e3);
    q.valid = forward(D(top)).x > q.distance;
    q.angle = rising_inverse(forward, zero_unless(q.valid, q.distance), backward(q.distance).x, top);
  } else {
    const Solved<D> solved = newton_inverse(forward, q.distance, backward(q.distance).x, 3);
    q.angle = solved.x;
    q.valid = solved.done & (abs(q.angle) < D(1e3));
  }
  q.angle = select(q.valid, q.angle, D(0.5));
  q.per_distance = D(1.0) / forward(q.angle).y;
  return q;
}
template <class D>
LG_INLINE CameraRay<D> unproject(FTheta lens, const Sensor& s, const Pair<D>& pixel) {
  const PolarRay<D> q = polar_ray(lens, s, image_of(lens, s, pixel));
  const D zero = D(0.0);
  return {{zero, zero, zero}, direction_of(q), q.valid};
}
template <class D, class Add>
LG_INLINE void unproject_backward(FTheta lens, const Sensor& s, const Pair<D>& pixel, const RayGradient<D>& v,
                                  const Add& add) {
  using namespace lens_parameter;
  const Pair<D> image = image_of(lens, s, pixel);
  const PolarRay<D> q = polar_ray(lens, s, image);
  const PolarGradient<D> g = polar_backward(q, v.direction);
  D power = s.inverse_reference ? g.angle : -g.angle * q.per_distance;
  for (int i = 0; i < 6; ++i) {
    add((s.inverse_reference ? kDistanceToAngle : kAngleToDistance) + i, power);
    power = power * (s.inverse_reference ? q.distance : q.angle);
  }
  const double c = s.parameters[kLinear], d = s.parameters[kLinear + 1], e = s.parameters[kLinear + 2];
  const D inverse = D(1.0 / (c - d * e));
  // Minus the gradient of the pixel.
  const D x = (D(e) * g.image.y - g.image.x) * inverse, y = (D(d) * g.image.x - D(c) * g.image.y) * inverse;
  add(kCx, x);
  add(kCy, y);
  add(kLinear, x * image.x);
  add(kLinear + 1, x * image.y);
  add(kLinear + 2, y * image.x);
}

// The sensor with the windshield seen from behind: the inverse polynomials replace the forward ones.
LG_INLINE Sensor from_behind(const Sensor& s) {
  Sensor to = s;
  for (int i = 0; i < 2 * lens_parameter::kWindshield; ++i) {
    to.parameters[lens_parameter::kHorizontal + i] = s.inverse_windshield[i];
  }
  return to;
}

// Sends a ray from the lens through the windshield, if the sensor has one.
template <class D>
LG_INLINE CameraRay<D> through_windshield(const Sensor& s, CameraRay<D> ray) {
  if (!s.windshield) return ray;
  const D zero = D(0.0), one = D(1.0);
  const Triple<D>& d = ray.direction;
  const Triple<D> behind = {select(ray.valid, d.x, zero), select(ray.valid, d.y, zero), select(ray.valid, d.z, one)};
  ray.direction = masked(ray.valid, bend(from_behind(s), behind).to);
  return ray;
}
template <class Lens, class D>
LG_INLINE CameraRay<D> ray_of_pixel(const Sensor& s, const Pair<D>& pixel) {
  return through_windshield(s, unproject(Lens(), s, pixel));
}
// The ray of a pixel, given and updating the solution at a nearby pixel.
template <class Lens, class D>
LG_INLINE CameraRay<D> ray_of_pixel(const Sensor& s, const Pair<D>& pixel, Neighbour<D>& near) {
  if constexpr (std::is_same_v<Lens, OpenCVPinhole>) return through_windshield(s, unproject(Lens(), s, pixel, &near));
  return ray_of_pixel<Lens>(s, pixel);
}
template <class Lens, class D, class Add>
LG_INLINE void ray_of_pixel_backward(const Sensor& s, const Pair<D>& pixel, const RayGradient<D>& v, const Add& add) {
  if (!s.windshield) return unproject_backward(Lens(), s, pixel, v, add);
  const CameraRay<D> ray = unproject(Lens(), s, pixel);
  const D zero = D(0.0), one = D(1.0);
  const Triple<D>& d = ray.direction;
  const Triple<D> behind = {select(ray.valid, d.x, zero), select(ray.valid, d.y, zero), select(ray.valid, d.z, one)};
  const Bent<D> b = bend(from_behind(s), behind);
  const Triple<D> seen = masked(ray.valid, v.direction);
  windshield_parameters(b, seen,
                        [&](int index, D value) { add(kSensorSums + index - lens_parameter::kHorizontal, value); });
  unproject_backward(Lens(), s, pixel, RayGradient<D>{v.origin, bend_backward(b, seen)}, add);
}

LG_END
