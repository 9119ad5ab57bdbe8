// The direction in which a Gaussian is seen, on which its colour depends through spherical harmonics (spec sections 1.6
// and 3.7). Templates on the number type.
#pragma once

#include "common/math/harmonics.h"
#include "gaussians/math/shape.h"

LG_BEGIN_ENGINE(gaussians)

// A unit direction and the inverse of the distance; 0 where the distance is 0.
template <class F>
struct Direction {
  Triple<F> d;
  F inverse;
};

template <class F>
LG_INLINE Direction<F> direction_to(const Pose& pose, const Triple<F>& mean) {
  const F x = mean.x - F(pose.eye[0]), y = mean.y - F(pose.eye[1]), z = mean.z - F(pose.eye[2]);
  const F length2 = fma(x, x, fma(y, y, z * z));
  const auto good = length2 > F(1e-36f);
  const F inverse = select(good, quick_inverse_sqrt(select(good, length2, F(1.0f))), F(0.0f));
  return {{x * inverse, y * inverse, z * inverse}, inverse};
}

// The gradient of the mean, from the unit direction's gradient.
template <class F>
LG_INLINE Triple<F> direction_backward(const Direction<F>& direction, const Triple<F>& v) {
  const F along = dot(direction.d, v);
  return {(v.x - direction.d.x * along) * direction.inverse, (v.y - direction.d.y * along) * direction.inverse,
          (v.z - direction.d.z * along) * direction.inverse};
}

LG_END
