// The response of one Gaussian along one ray (sensors spec section 3): in a frame in which the Gaussian is a unit
// sphere, the response depends on the ray's distance from the centre. Rays and Gaussians are in the frame of the camera
// at the start of the exposure. Templates on the number type.
#pragma once

#include "common/math/exp.h"
#include "gaussians/math/record.h"
#include "gaussians/math/sensor/slice_motion.h"

LG_BEGIN_ENGINE(gaussians)

// The record of a Gaussian: `kUnit`, the matrix to the frame in which it is a unit sphere, row by row; its centre
// in that frame; and the number of its slice among the moving slices, or -1.
namespace ray_record {
enum Field { kUnit, kCentre = 9, kLog2Opacity = 12, kMotion, kUsed };
}
// Sums over the pixels for the backward pass: with n the closest point to the centre in the unit frame, v_sigma the
// gradient of n.n / 2, d the ray's direction there and v_t that of the distance:
//   kSquare (xx xy xz yy yz zz): v_sigma n n^T - v_t / (d.d) (d n^T + n d^T);   kOrigin: v_sigma n - v_t / (d.d) d;
// then of v_sigma and of the gradient of the normal.
namespace ray_row {
enum Field { kSquare, kOrigin = 6, kOne = 9, kNormal = 10, kUsed = 13 };
}

template <class F>
struct UnitRay {
  Triple<F> origin, direction;
};

// A ray as a moving slice sees it, in whose frame Gaussians stay where they are at the start of the exposure.
template <class F>
LG_INLINE UnitRay<F> unmoved(const SliceMotion<float>& m, F time, const Triple<F>& origin, const Triple<F>& direction) {
  const SineCosine<F> half = half_turn(m, time);
  const Triple<F> axis = triple_of<F>(m.axis), here = difference(origin, scaled(triple_of<F>(m.motion), time));
  const Triple<F> from_origin = difference(here, triple_of<F>(m.origin));
  return {here + turn_of(axis, -half.sine, half.cosine, from_origin), turned_back(m, half, direction)};
}

// Adds to the sums of a moving slice (see kSliceMotionSums), given a ray as the slice sees it with its gradient, and a
// normal, which the slice turns, with its gradient; returns the gradient of the ray.
template <class F, class Add>
LG_INLINE UnitRay<F> unmoved_backward(const SliceMotion<float>& m, F time, const UnitRay<F>& ray, const UnitRay<F>& v,
                                      const Triple<F>& normal, const Triple<F>& v_normal, const Add& add) {
  const SineCosine<F> half = half_turn(m, time);
  const UnitRay<F> to = {turned_by(m, half, v.origin), turned_by(m, half, v.direction)};
  const Triple<F> from_origin = difference(ray.origin, triple_of<F>(m.origin));
  const Triple<F> spin =
      difference(cross(normal, v_normal), cross(from_origin, v.origin) + cross(ray.direction, v.direction));
  add_slice_motion(m, time, half, spin, Triple<F>{-to.origin.x, -to.origin.y, -to.origin.z}, add);
  return to;
}

// The third axis of a Gaussian, from its record.
LG_INLINE Triple<float> third_axis(const float* r) {
  const Triple<float> row = {r[6], r[7], r[8]};
  return scaled(row, 1.0f / sqrt(dot(row, row)));
}

// The ray in the Gaussian's unit frame. With `kOneOrigin` it starts at the camera frame's origin.
template <bool kOneOrigin, class F>
LG_INLINE UnitRay<F> unit_ray(const float* r, const Triple<F>& origin, const Triple<F>& direction) {
  const Matrix<F> m = {{F(r[0]), F(r[1]), F(r[2])}, {F(r[3]), F(r[4]), F(r[5])}, {F(r[6]), F(r[7]), F(r[8])}};
  const float* c = r + ray_record::kCentre;
  if constexpr (kOneOrigin) {
    return {{F(-c[0]), F(-c[1]), F(-c[2])}, m * direction};
  } else {
    const Triple<F> o = m * origin;
    return {{o.x - F(c[0]), o.y - F(c[1]), o.z - F(c[2])}, m * direction};
  }
}

// The ray's closest point to the centre: the response there, and whether it is ahead of the origin.
template <class F>
struct Closest {
  Triple<F> across;  // origin x direction
  F inverse;         // 1 / direction.direction
  F back;            // origin.direction: negative where the closest point is ahead
};
template <class F>
LG_INLINE Closest<F> closest_of(const UnitRay<F>& ray) {
  return {cross(ray.origin, ray.direction), quick_inverse(max(dot(ray.direction, ray.direction), F(1e-30f))),
          dot(ray.origin, ray.direction)};
}
// log2 of opacity times response. Forward and backward must evaluate exactly the same expression.
template <class F>
LG_INLINE F log2_alpha(const Closest<F>& c, float log2_opacity) {
  return fnma(dot(c.across, c.across) * F(kHalfLog2E), c.inverse, F(log2_opacity));
}
template <class F>
LG_INLINE F distance_to(const Closest<F>& c) {
  return -c.back * c.inverse;
}

// The geometric part of a row (see ray_row), in this order.
template <class F>
struct RayRow {
  F xx, xy, xz, yy, yz, zz, ox, oy, oz, one, nx, ny, nz;
};

// Gradients that a pixel sends back to a Gaussian: v_sigma, the weight (`share`) with which distance and normal count,
// and the gradients of the distance and the normal.
template <class F>
struct RayPull {
  F v_sigma, share, v_hit;
  Triple<F> v_normal;
};

// Adds a pixel to the row; returns the gradient of the ray in the Gaussian's unit frame. `kGeometry`: includes
// distances and normals.
template <bool kGeometry, class F>
LG_INLINE UnitRay<F> add_to_row(const UnitRay<F>& ray, const Closest<F>& at, const RayPull<F>& v, RayRow<F>& sums) {
  const Triple<F>& d = ray.direction;
  const Triple<F> n = scaled(cross(d, at.across), at.inverse);
  Triple<F> v_origin = scaled(n, v.v_sigma);
  F along = F(0.0f);
  sums.one = sums.one + v.v_sigma;
  sums.xx = fma(v_origin.x, n.x, sums.xx);
  sums.xy = fma(v_origin.x, n.y, sums.xy);
  sums.xz = fma(v_origin.x, n.z, sums.xz);
  sums.yy = fma(v_origin.y, n.y, sums.yy);
  sums.yz = fma(v_origin.y, n.z, sums.yz);
  sums.zz = fma(v_origin.z, n.z, sums.zz);
  if constexpr (kGeometry) {
    along = v.share * v.v_hit * at.inverse;
    const Triple<F> m = scaled(n, along), twice = {m.x + m.x, m.y + m.y, m.z + m.z};
    sums.xx = fnma(d.x, twice.x, sums.xx);
    sums.xy = fnma(d.x, m.y, fnma(d.y, m.x, sums.xy));
    sums.xz = fnma(d.x, m.z, fnma(d.z, m.x, sums.xz));
    sums.yy = fnma(d.y, twice.y, sums.yy);
    sums.yz = fnma(d.y, m.z, fnma(d.z, m.y, sums.yz));
    sums.zz = fnma(d.z, twice.z, sums.zz);
    v_origin = {fnma(along, d.x, v_origin.x), fnma(along, d.y, v_origin.y), fnma(along, d.z, v_origin.z)};
    sums.nx = fma(v.share, v.v_normal.x, sums.nx);
    sums.ny = fma(v.share, v.v_normal.y, sums.ny);
    sums.nz = fma(v.share, v.v_normal.z, sums.nz);
  }
  sums.ox = sums.ox + v_origin.x;
  sums.oy = sums.oy + v_origin.y;
  sums.oz = sums.oz + v_origin.z;
  const F t = distance_to(at);
  return {v_origin,
          {fma(t, v_origin.x, -(along * n.x)), fma(t, v_origin.y, -(along * n.y)), fma(t, v_origin.z, -(along * n.z))}};
}

// Converts gradients from the unit frame to the frame of the camera at the start.
template <class F>
LG_INLINE UnitRay<F> from_unit(const float* r, const UnitRay<F>& v) {
  const Matrix<F> m = {{F(r[0]), F(r[1]), F(r[2])}, {F(r[3]), F(r[4]), F(r[5])}, {F(r[6]), F(r[7]), F(r[8])}};
  return {transposed_times(m, v.origin), transposed_times(m, v.direction)};
}

LG_END
