// One Gaussian along one ray (sensors spec section 3): with its axes and scales it becomes a unit sphere, and what
// counts is how close the ray comes to the centre. Rays and Gaussians are in one frame, that of the camera at the start
// of the exposure. Templates on the number type.
#pragma once

#include "common/math/exp.h"
#include "gaussians/math/record.h"
#include "gaussians/math/shape.h"

LG_BEGIN_ENGINE(gaussians)

// The record of a Gaussian: `kUnit`, the matrix to the frame in which it is a unit sphere, row by row; its centre
// there; and the length of the third axis, by which the matrix's third row becomes the normal.
namespace ray_record {
enum Field { kUnit, kCentre = 9, kLog2Opacity = 12, kThirdScale = 13, kUsed = 14 };
}
// What a beam of rays is tested against: the axes of the ellipsoid on which alpha is alpha_min, and its centre.
namespace ray_bounds {
enum Field { kAxes, kCentre = 9, kUsed = 12 };
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

// The origin is the frame's if `kOneOrigin`.
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

// Where the ray comes closest: the response there, and whether that is ahead of the origin.
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
// log2 of opacity times response. Forward and backward must evaluate the very same expression.
template <class F>
LG_INLINE F log2_alpha(const Closest<F>& c, float log2_opacity) {
  return fnma(dot(c.across, c.across) * F(kHalfLog2E), c.inverse, F(log2_opacity));
}
template <class F>
LG_INLINE F distance_to(const Closest<F>& c) {
  return -c.back * c.inverse;
}

LG_END
