// Beams: cones that hold the rays of a part of the image. Testing Gaussians against beams finds the pixels that they
// may reach, for any lens and shutter.
#pragma once

#include "common/math/number64.h"
#include "gaussians/math/project.h"
#include "gaussians/math/ray.h"

LG_BEGIN_ENGINE(gaussians)

// A cone around an axis, with a half angle below 90 degrees, for all origins within a radius of a point. A beam that
// has no such description has the radius kEverywhere, and a beam without rays -kEverywhere.
template <class F>
struct Beam {
  Triple<F> axis;
  F cosine, sine;
  Triple<F> centre;
  F radius;
  F begin, end;  // The time span in which its rays are exposed.
};
inline constexpr int kBeamFields = 11;
inline constexpr float kEverywhere = 1e30f;

// Beams are grouped into windows of 4 x 4, and windows likewise into larger windows.
inline constexpr int kWindowBits = 2, kWindowSize = 1 << kWindowBits;

template <class F>
LG_INLINE Beam<F> beam_without_axis(float radius) {
  const F zero = F(0.0f), one = F(1.0f);
  return {{zero, zero, one}, one, zero, {zero, zero, zero}, F(radius), zero, one};
}
template <class F>
LG_INLINE Beam<F> empty_beam() {
  return beam_without_axis<F>(-kEverywhere);
}
template <class F>
LG_INLINE Beam<F> full_beam() {
  return beam_without_axis<F>(kEverywhere);
}

// A beam that holds the given beams.
LG_INLINE Beam<double> joined(const Beam<double>* beams, int count) {
  const double everywhere = static_cast<double>(kEverywhere);
  Triple<double> axis = {0.0, 0.0, 0.0}, centre = axis;
  int used = 0;
  for (int i = 0; i < count; ++i) {
    if (beams[i].radius >= everywhere) return full_beam<double>();
    if (beams[i].radius <= -everywhere) continue;
    ++used;
    axis = axis + beams[i].axis;
    centre = centre + beams[i].centre;
  }
  if (used == 0) return empty_beam<double>();
  const double length = sqrt(dot(axis, axis));
  if (length < 0.05 * used) return full_beam<double>();
  axis = scaled(axis, 1.0 / length);
  centre = scaled(centre, 1.0 / used);
  double sine = 0.0, radius = 0.0, begin = 1.0, end = 0.0;
  for (int i = 0; i < count; ++i) {
    const Beam<double>& b = beams[i];
    if (b.radius <= -everywhere) continue;
    const Triple<double> apart = cross(axis, b.axis);
    const Triple<double> off = {centre.x - b.centre.x, centre.y - b.centre.y, centre.z - b.centre.z};
    const double c = dot(axis, b.axis), s = sqrt(dot(apart, apart));
    if (c * b.cosine - s * b.sine < 0.05) return full_beam<double>();
    sine = max(sine, s * b.cosine + c * b.sine);
    radius = max(radius, sqrt(dot(off, off)) + b.radius);
    begin = min(begin, b.begin);
    end = max(end, b.end);
  }
  sine = min(1.0, sine * 1.00001 + 1e-6);
  const double around = radius * 1.00001 + 1e-6 * sqrt(dot(centre, centre));
  return {axis, sqrt(1.0 - sine * sine), sine, centre, around, begin, end};
}

// A beam that holds a beam's rays as a moving slice sees them: the beam at the middle of its time span, widened by the
// motion of the slice until its end.
template <class F>
LG_INLINE Beam<F> unmoved(const SliceMotion<float>& m, const Beam<F>& b) {
  const F half = F(0.5f), time = half * (b.begin + b.end), rest = half * (b.end - b.begin) + F(1e-6f);
  const UnitRay<F> at = unmoved(m, time, b.centre, b.axis);
  const SineCosine<F> wider = sine_cosine_of_small(rest * F(2.0f * m.half_angle));
  const F cosine = fma(b.cosine, wider.cosine, -(b.sine * wider.sine));
  const F sine = fma(b.sine, wider.cosine, b.cosine * wider.sine);
  const Triple<F> motion = triple_of<F>(m.motion), arm = difference(at.origin, triple_of<F>(m.origin));
  const F far = sqrt(dot(arm, arm)), speed = sqrt(dot(motion, motion)), turn = F(2.0f * m.half_angle);
  const F path = fma(turn, fma(rest, speed, far), speed) * rest;
  const F rounding = F(1e-6f) * (far + sqrt(dot(at.origin, at.origin)));
  const F radius = select(cosine < F(0.05f), F(kEverywhere), fma(path, F(1.0001f), b.radius + rounding));
  // Beams without rays stay empty.
  return {at.direction, cosine, sine, at.origin, select(b.radius < F(-0.5f * kEverywhere), b.radius, radius),
          b.begin,      b.end};
}

// Bounds to test beams against: the half axes of the ellipsoid on which alpha is alpha_min, and its centre.
template <class F>
struct RayBounds {
  Triple<F> axis[3], centre;
};

// Bounds from a record (see ray_record), whose rows are the axes divided by their lengths.
LG_INLINE RayBounds<float> ray_bounds_of(const float* r, float log2_alpha_min) {
  const float above = max(r[ray_record::kLog2Opacity] - log2_alpha_min, 0.0f), reach = sqrt(kTwoLn2 * above);
  RayBounds<float> b;
  b.centre = {0.0f, 0.0f, 0.0f};
  for (int k = 0; k < 3; ++k) {
    const Triple<float> row = {r[3 * k], r[3 * k + 1], r[3 * k + 2]};
    const Triple<float> axis = scaled(row, quick_inverse(max(dot(row, row), 1e-30f)));
    b.axis[k] = scaled(axis, reach);
    b.centre = b.centre + scaled(axis, r[ray_record::kCentre + k]);
  }
  return b;
}

// Whether a Gaussian may reach a beam. If not, a plane through the beam's tip, along the side that faces the Gaussian,
// separates the two.
template <class F>
LG_INLINE MaskOf<F> reaches(const Beam<F>& b, const RayBounds<F>& g) {
  const Triple<F> v = {g.centre.x - b.centre.x, g.centre.y - b.centre.y, g.centre.z - b.centre.z};
  const Triple<F>& axis = b.axis;
  const F along = dot(axis, v);
  const Triple<F> p = {fnma(along, axis.x, v.x), fnma(along, axis.y, v.y), fnma(along, axis.z, v.z)};
  const F square = max(dot(p, p), F(1e-30f)), inverse = quick_inverse_sqrt(square), beside = square * inverse;
  const F toward = b.cosine * inverse;
  const Triple<F> normal = {fma(toward, p.x, -(b.sine * axis.x)), fma(toward, p.y, -(b.sine * axis.y)),
                            fma(toward, p.z, -(b.sine * axis.z))};
  const F x = dot(g.axis[0], normal), y = dot(g.axis[1], normal), z = dot(g.axis[2], normal);
  const F half = sqrt(fma(x, x, fma(y, y, z * z)));
  const F rounding = F(1e-6f) * (beside + abs(along));
  const F apart = fma(b.cosine, beside, -(b.sine * along)) - b.radius;
  return apart <= fma(half, F(1.0001f), rounding);
}

LG_END
