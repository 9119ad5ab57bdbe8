// Spinning lidars: x forward, y left, z up. A point's place is its azimuth and elevation, in units of 1 / 1024 radian
// (sensors spec section 6); the rays of returns follow from tables of angles.
#pragma once

#include "common/math/angle.h"
#include "gaussians/math/sensor/lens.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr double kUnitsPerRadian = 1024.0, kFullTurn = 6.283185307179586;

// atan2(y, x), in [-pi, pi].
template <class D>
LG_INLINE D full_angle(D y, D x) {
  const D angle = angle_from_x(abs(y), x);
  return select(y < D(0.0), -angle, angle);
}

struct SpinningLidar {
  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor&, const Triple<D>& p) {
    const D across = sqrt(fma(p.x, p.x, p.y * p.y)), scale = D(kUnitsPerRadian);
    return {{scale * full_angle(p.y, p.x), scale * full_angle(p.z, across)}, p.x <= p.x};
  }
};

// The direction at these angles, radians.
template <class D>
LG_INLINE Triple<D> direction_at(const Pair<D>& angles) {
  const SineCosine<D> azimuth = sine_cosine(angles.x), elevation = sine_cosine(angles.y);
  return {azimuth.cosine * elevation.cosine, azimuth.sine * elevation.cosine, elevation.sine};
}
// The gradient of the angles, given the direction's gradient.
template <class D>
LG_INLINE Pair<D> direction_backward(const Pair<D>& angles, const Triple<D>& v) {
  const SineCosine<D> azimuth = sine_cosine(angles.x), elevation = sine_cosine(angles.y);
  const D outward = fma(azimuth.cosine, v.x, azimuth.sine * v.y),
          along = fma(azimuth.cosine, v.y, -(azimuth.sine * v.x));
  return {along * elevation.cosine, fma(elevation.cosine, v.z, -(elevation.sine * outward))};
}

LG_END
