// Sensors along rays: rays of pixels and Gaussians in the frame of the camera at the start of the exposure, and the
// gradients through both (sensors spec section 3). Templates on the number type; in doubles.
#pragma once

#include "gaussians/math/ray.h"
#include "gaussians/math/sensor/project.h"
#include "gaussians/math/sensor/unproject.h"

LG_BEGIN_ENGINE(gaussians)

// Whether all rays of the view start at the frame's origin.
LG_INLINE bool has_one_origin(const Scene& scene, const Sensor& s) {
  return scene.rays == nullptr && !is_rolling(s) && s.lens != SensorLens::orthographic;
}

// Transforms a pixel's ray from the camera's frame at the pixel's time to the frame at the start.
template <class D>
LG_INLINE CameraRay<D> to_start(const View& view, const Sensor& s, const Pair<D>& pixel, CameraRay<D> ray) {
  if (!is_rolling(s)) return ray;
  const Instant<D> at = instant_at(s, Clock(view, s).time(pixel));
  const Triple<D> t = triple_of<D>(s.translation), m = triple_of<D>(s.motion), &o = ray.origin;
  const Triple<D> from = {o.x - t.x - at.time * m.x, o.y - t.y - at.time * m.y, o.z - t.z - at.time * m.z};
  ray.origin = turned(s, -at.sine, at.cosine, from) + t;
  ray.direction = turned(s, -at.sine, at.cosine, ray.direction);
  return ray;
}

// Returns the gradient of the ray at the pixel's time, given the ray at the start and its gradient; adds the gradients
// of the motion (see kMotionSums).
template <class D, class Add>
LG_INLINE RayGradient<D> to_start_backward(const View& view, const Sensor& s, const Pair<D>& pixel,
                                           const RayGradient<D>& ray, const RayGradient<D>& v_ray, const Add& add) {
  const Triple<D> t = triple_of<D>(s.translation);
  const D zero = D(0.0);
  const Triple<D> from_eye = {ray.origin.x - t.x, ray.origin.y - t.y, ray.origin.z - t.z};
  const Instant<D> at = is_rolling(s) ? instant_at(s, Clock(view, s).time(pixel)) : Instant<D>{zero, zero, D(1.0)};
  const Triple<D> spin = cross(v_ray.origin, from_eye) + cross(v_ray.direction, ray.direction);
  RayGradient<D> v = v_ray;
  if (is_rolling(s)) {
    v = {turned(s, at.sine, at.cosine, v_ray.origin), turned(s, at.sine, at.cosine, v_ray.direction)};
  }
  add_motion(s, at, spin, Triple<D>{-v.origin.x, -v.origin.y, -v.origin.z}, add);
  return v;
}

// Transforms a ray [6] given in the world to the camera's frame at the start.
LG_INLINE RayGradient<double> given_ray(const Sensor& s, const float* given) {
  const Matrix<double> r = matrix_of<double>(s.rotation);
  const Triple<double> o = r * Triple<double>{given[0], given[1], given[2]} + triple_of<double>(s.translation);
  const Triple<double> d = r * Triple<double>{given[3], given[4], given[5]};
  const double length = sqrt(dot(d, d));
  return {o, scaled(d, length > 0.0 ? 1.0 / length : 0.0)};
}
// Writes the gradient [6] of a given ray, from the gradient at the start.
LG_INLINE void given_ray_backward(const Sensor& s, const RayGradient<double>& v, const float* given, float* to) {
  const Matrix<double> r = matrix_of<double>(s.rotation);
  const Triple<double> v_o = transposed_times(r, v.origin), v_d = transposed_times(r, v.direction);
  const Triple<double> d = {given[3], given[4], given[5]};
  const double square = dot(d, d), along = dot(d, v_d) / square, inverse = 1.0 / sqrt(square);
  // The length of the direction has no effect.
  const double values[6] = {v_o.x,
                            v_o.y,
                            v_o.z,
                            (v_d.x - d.x * along) * inverse,
                            (v_d.y - d.y * along) * inverse,
                            (v_d.z - d.z * along) * inverse};
  for (int k = 0; k < 6; ++k) to[k] = static_cast<float>(values[k]);
}

// A Gaussian at the start of the exposure: its axes as columns, their lengths, and its centre.
template <class D>
struct RayBody {
  Matrix<D> axes;
  Triple<D> scale, centre;
};

// Scales without those that rays cannot hit.
template <class D>
LG_INLINE Triple<D> thick(const Triple<D>& scale) {
  const D least = D(kThinnest);
  return {max(scale.x, least), max(scale.y, least), max(scale.z, least)};
}

template <class D>
LG_INLINE RayBody<D> ray_body(const SensorPlace& at, const Gaussian<D>& gaussian) {
  const Body<D> body = body_of(at, gaussian);
  return {product(body.to_camera, body.rotation),
          scaled(thick(gaussian.scale), D(static_cast<double>(at.settings.scale_modifier))),
          body.centre + triple_of<D>(at.sensor.translation)};
}
// Writes the first fields of a Gaussian's record (see ray_record).
template <class D>
LG_INLINE void write_ray_record(const RayBody<D>& g, D* record) {
  const auto inverse = [](D a) { return D(1.0) / max(a, D(1e-30)); };
  const Triple<D> x = scaled(Triple<D>{g.axes.x.x, g.axes.y.x, g.axes.z.x}, inverse(g.scale.x));
  const Triple<D> y = scaled(Triple<D>{g.axes.x.y, g.axes.y.y, g.axes.z.y}, inverse(g.scale.y));
  const Triple<D> z = scaled(Triple<D>{g.axes.x.z, g.axes.y.z, g.axes.z.z}, inverse(g.scale.z));
  const D unit[12] = {
      x.x, x.y, x.z, y.x, y.y, y.z, z.x, z.y, z.z, dot(x, g.centre), dot(y, g.centre), dot(z, g.centre)};
  for (int i = 0; i < 12; ++i) record[i] = unit[i];
}

// The gradients of a Gaussian, given the sums of its pixels (see ray_row) and the gradients of depth and 1 / depth.
// Calls add(index, value) for the sums of the view (see kSensorSums) if add.wanted().
template <class D, class Add>
LG_INLINE GaussianGradient<D> along_rays_backward(const SensorPlace& at, const Gaussian<D>& gaussian, const D* f,
                                                  D v_depth, D v_inverse_depth, const Add& add) {
  const Body<D> body = body_of(at, gaussian);
  const D zero = D(0.0), factor = D(static_cast<double>(at.settings.scale_modifier));
  const Triple<D> s = thick(gaussian.scale);
  const Triple<D> inverse = {D(1.0) / s.x, D(1.0) / s.y, D(1.0) / s.z};
  const Matrix<D> square = {{f[0], f[1], f[2]}, {f[1], f[3], f[4]}, {f[2], f[4], f[5]}};
  GaussianGradient<D> to{};
  to.opacity = -f[ray_row::kOne] / max(gaussian.opacity, D(1e-30));
  to.scale = {-square.x.x * inverse.x, -square.y.y * inverse.y, -square.z.z * inverse.z};
  const Matrix<D> bare = {scaled(times(square.x, inverse), s.x), scaled(times(square.y, inverse), s.y),
                          scaled(times(square.z, inverse), s.z)};
  Matrix<D> v_rotation = product(body.rotation, bare);
  const Triple<D> v_third = transposed_times(
      body.to_camera, Triple<D>{f[ray_row::kNormal], f[ray_row::kNormal + 1], f[ray_row::kNormal + 2]});
  v_rotation.x.z = v_rotation.x.z + v_third.x;
  v_rotation.y.z = v_rotation.y.z + v_third.y;
  v_rotation.z.z = v_rotation.z.z + v_third.z;
  const Triple<D> pull = times(Triple<D>{f[ray_row::kOrigin], f[ray_row::kOrigin + 1], f[ray_row::kOrigin + 2]},
                               scaled(inverse, D(-1.0) / factor));
  Triple<D> v_centre = body.to_camera * (body.rotation * pull);
  if (!at.settings.frozen_projection) {
    v_centre = v_centre + depth_backward(at, body, v_depth, v_inverse_depth, add);
  }
  to.mean2d = {zero, zero};
  to.fx = to.fy = to.cx = to.cy = zero;
  place_backward(at, gaussian, body, v_centre, v_rotation, to);
  return to;
}

LG_END
