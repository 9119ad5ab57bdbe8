// Slices of the scene that move during the exposure of a sensor's rows: their poses are interpolated like the cameras'
// (sensors spec section 5). As seen from the camera at the start of the exposure, a slice is turned at a time t
// by t times an angle about an axis through its origin, and translated by t times its motion. Templates on the number
// type.
#pragma once

#include "common/math/angle.h"
#include "gaussians/math/shape.h"

LG_BEGIN_ENGINE(gaussians)

// T is double on the film, where the frame is before the camera's translation, and float along rays, where the frame is
// after it.
template <class T>
struct SliceMotion {
  bool moves;
  T axis[3], half_angle;
  T origin[3], motion[3];
};

template <class F, class T>
LG_INLINE Triple<F> triple_of(const T* v) {
  return {F(v[0]), F(v[1]), F(v[2])};
}
template <class D>
LG_INLINE Matrix<D> matrix_of(const double* m) {
  return {triple_of<D>(m), triple_of<D>(m + 3), triple_of<D>(m + 6)};
}
template <class F>
LG_INLINE Triple<F> difference(const Triple<F>& a, const Triple<F>& b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}

// The vector that a turn about an axis adds to v, given the sine and cosine of half its angle.
template <class F>
LG_INLINE Triple<F> turn_of(const Triple<F>& axis, F sine, F cosine, const Triple<F>& v) {
  const Triple<F> across = cross(axis, v), inward = cross(axis, across);
  return scaled(scaled(across, cosine) + scaled(inward, sine), F(2.0f) * sine);
}

// The transposed derivative of the turn at time t. If the start is turned by phi0 and the end by phi1, the pose at time
// t is turned by (1 - G) phi0 + G phi1, each seen from the start: along the axis G is t; across it, G is sin(t a / 2) /
// sin(a / 2) times a turn by (t - 1) a / 2, with a the angle. Returns G^T v. `end` and `at` are for half the angles at
// the end and at the time.
template <class F>
LG_INLINE Triple<F> carried_to_end(const Triple<F>& axis, const SineCosine<F>& end, const SineCosine<F>& at, F time,
                                   const Triple<F>& v) {
  const Triple<F> parallel = scaled(axis, dot(axis, v)), across = difference(v, parallel);
  const F ratio = at.sine / end.sine;
  // cos and sin of (t - 1) a / 2.
  const F c = fma(at.cosine, end.cosine, at.sine * end.sine), n = fma(at.sine, end.cosine, -(at.cosine * end.sine));
  const Triple<F> carried = scaled(across, ratio * c) + scaled(cross(axis, across), ratio * n);
  return carried + scaled(parallel, time);
}

template <class D>
LG_INLINE SineCosine<D> half_turn(const SliceMotion<double>& m, D time) {
  return sine_cosine(time * D(m.half_angle));
}
// Sine and cosine of half the turn at a time within the exposure.
template <class F>
LG_INLINE SineCosine<F> half_turn(const SliceMotion<float>& m, F time) {
  return sine_cosine_of_small(time * F(m.half_angle));
}

LG_INLINE SliceMotion<double> slice_motion(const Sensor& s, const SlicePose& slice) {
  SliceMotion<double> m{};
  m.moves = slice.moving >= 0;
  if (!m.moves) return m;
  const Matrix<double> r = matrix_of<double>(s.rotation);
  const auto put = [&](const double* from, double* to) {
    const Triple<double> v = r * triple_of<double>(from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
  };
  put(slice.axis, m.axis);
  put(slice.translation, m.origin);
  put(slice.motion, m.motion);
  m.half_angle = 0.5 * slice.angle;
  return m;
}
LG_INLINE SliceMotion<float> ray_slice_motion(const Sensor& s, const SlicePose& slice) {
  const SliceMotion<double> m = slice_motion(s, slice);
  SliceMotion<float> to{};
  to.moves = m.moves;
  to.half_angle = static_cast<float>(m.half_angle);
  for (int k = 0; k < 3; ++k) {
    to.axis[k] = static_cast<float>(m.axis[k]);
    to.origin[k] = static_cast<float>(m.origin[k] + s.translation[k]);
    to.motion[k] = static_cast<float>(m.motion[k]);
  }
  return to;
}

// Turns a vector of a moving slice from the start to a time, and back.
template <class F, class T>
LG_INLINE Triple<F> turned_by(const SliceMotion<T>& m, const SineCosine<F>& half, const Triple<F>& v) {
  return v + turn_of(triple_of<F>(m.axis), half.sine, half.cosine, v);
}
template <class F, class T>
LG_INLINE Triple<F> turned_back(const SliceMotion<T>& m, const SineCosine<F>& half, const Triple<F>& v) {
  return v + turn_of(triple_of<F>(m.axis), -half.sine, half.cosine, v);
}

// A point of a slice at a time, given its position at the start.
template <class D>
LG_INLINE Triple<D> moved(const SliceMotion<double>& m, D time, const Triple<D>& start) {
  if (!m.moves) return start;
  const SineCosine<D> half = half_turn(m, time);
  const Triple<D> from_origin = difference(start, triple_of<D>(m.origin));
  return start + turn_of(triple_of<D>(m.axis), half.sine, half.cosine, from_origin) +
         scaled(triple_of<D>(m.motion), time);
}
// The velocity of the point at that time.
template <class D>
LG_INLINE Triple<D> velocity_of(const SliceMotion<double>& m, D time, const Triple<D>& point) {
  const Triple<D> motion = triple_of<D>(m.motion);
  const Triple<D> from_origin = difference(point, triple_of<D>(m.origin) + scaled(motion, time));
  return scaled(cross(triple_of<D>(m.axis), from_origin), D(2.0 * m.half_angle)) + motion;
}

// The sums of a slice (see kSliceMotionSums), given the gradients of the turn of its pose at a time, seen from the
// start, and of its translation.
template <class F, class T, class Add>
LG_INLINE void add_slice_motion(const SliceMotion<T>& m, F time, const SineCosine<F>& half, const Triple<F>& spin,
                                const Triple<F>& push, const Add& add) {
  const auto put = [&](int first, const Triple<F>& values) {
    add(first, values.x);
    add(first + 1, values.y);
    add(first + 2, values.z);
  };
  put(0, carried_to_end(triple_of<F>(m.axis), half_turn(m, F(1.0f)), half, time, spin));
  put(3, push);
  put(6, scaled(push, time));
}

// The gradient of a point at the start, from its gradient at a time. Adds to the sums of the slice, whose indices
// follow those of the rays (see kRaySums), if add.wanted().
template <class D, class Add>
LG_INLINE Triple<D> moved_backward(const SliceMotion<double>& m, D time, const Triple<D>& start, const Triple<D>& v,
                                   const Add& add) {
  if (!m.moves) return v;
  const SineCosine<D> half = half_turn(m, time);
  const Triple<D> back = turned_back(m, half, v);
  if (add.wanted()) {
    const Triple<D> spin = cross(difference(start, triple_of<D>(m.origin)), back);
    add_slice_motion(m, time, half, spin, v, [&](int index, const D& value) { add(kRaySums + index, value); });
  }
  return back;
}

LG_END
