// The shape of a Gaussian: rotation from a quaternion, and 3x3 algebra (spec sections 1.2 and 3.6). Templates on the
// number type. Members are used instead of arrays, which compilers would keep in memory.
#pragma once

#include "gaussians/math/camera.h"

LG_BEGIN_ENGINE(gaussians)

template <class F>
struct Matrix {
  Triple<F> x, y, z;  // Rows.
};

template <class F>
struct Symmetric {
  F xx, xy, xz, yy, yz, zz;
};

template <class F>
struct Quaternion {
  F w, x, y, z;
};

template <class F>
LG_INLINE Triple<F> operator*(const Matrix<F>& m, const Triple<F>& v) {
  return {dot(m.x, v), dot(m.y, v), dot(m.z, v)};
}
template <class F>
LG_INLINE Triple<F> operator*(const Symmetric<F>& m, const Triple<F>& v) {
  return {dot({m.xx, m.xy, m.xz}, v), dot({m.xy, m.yy, m.yz}, v), dot({m.xz, m.yz, m.zz}, v)};
}
template <class F>
LG_INLINE Triple<F> operator+(const Triple<F>& a, const Triple<F>& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}
template <class F>
LG_INLINE Triple<F> scaled(const Triple<F>& a, F factor) {
  return {a.x * factor, a.y * factor, a.z * factor};
}
template <class F>
LG_INLINE Triple<F> times(const Triple<F>& a, const Triple<F>& b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z};
}
// v^T m.
template <class F>
LG_INLINE Triple<F> transposed_times(const Matrix<F>& m, const Triple<F>& v) {
  return {fma(m.x.x, v.x, fma(m.y.x, v.y, m.z.x * v.z)), fma(m.x.y, v.x, fma(m.y.y, v.y, m.z.y * v.z)),
          fma(m.x.z, v.x, fma(m.y.z, v.y, m.z.z * v.z))};
}
template <class F>
LG_INLINE Matrix<F> product(const Matrix<F>& a, const Matrix<F>& b) {
  return {transposed_times(b, a.x), transposed_times(b, a.y), transposed_times(b, a.z)};
}

// a b^T.
template <class F>
LG_INLINE Matrix<F> product_transposed(const Matrix<F>& a, const Matrix<F>& b) {
  return {b * a.x, b * a.y, b * a.z};
}
template <class F>
LG_INLINE Triple<F> cross(const Triple<F>& a, const Triple<F>& b) {
  return {fma(a.y, b.z, -(a.z * b.y)), fma(a.z, b.x, -(a.x * b.z)), fma(a.x, b.y, -(a.y * b.x))};
}

template <class F>
LG_INLINE Matrix<F> rotation_of(const Pose& pose) {
  const float* r = pose.rotation;
  return {{F(r[0]), F(r[1]), F(r[2])}, {F(r[3]), F(r[4]), F(r[5])}, {F(r[6]), F(r[7]), F(r[8])}};
}

// A unit quaternion and the factor that normalised it; the identity and 0 if the quaternion is too short.
template <class F>
struct UnitQuaternion {
  Quaternion<F> q;
  F factor;
};

template <class F>
LG_INLINE UnitQuaternion<F> normalized(const Quaternion<F>& q) {
  // Divides by the largest component first, since squares of tiny and huge components would leave the range.
  const F largest = max(max(abs(q.w), abs(q.x)), max(abs(q.y), abs(q.z)));
  const auto good = largest > F(1e-18f);
  const F first = F(1.0f) / select(good, largest, F(1.0f));
  const F w = q.w * first, x = q.x * first, y = q.y * first, z = q.z * first;
  const F length2 = fma(w, w, fma(x, x, fma(y, y, z * z)));
  const F second = F(1.0f) / sqrt(select(good, length2, F(1.0f)));
  const F zero = F(0.0f);
  return {{select(good, w * second, F(1.0f)), select(good, x * second, zero), select(good, y * second, zero),
           select(good, z * second, zero)},
          select(good, first * second, zero)};
}

template <class F>
LG_INLINE Matrix<F> rotation_of(const Quaternion<F>& q) {
  const F one = F(1.0f), x2 = q.x + q.x, y2 = q.y + q.y, z2 = q.z + q.z;
  const F wx = q.w * x2, wy = q.w * y2, wz = q.w * z2;
  return {{fnma(q.y, y2, fnma(q.z, z2, one)), fma(q.x, y2, -wz), fma(q.x, z2, wy)},
          {fma(q.x, y2, wz), fnma(q.x, x2, fnma(q.z, z2, one)), fma(q.y, z2, -wx)},
          {fma(q.x, z2, -wy), fma(q.y, z2, wx), fnma(q.x, x2, fnma(q.y, y2, one))}};
}

// The gradient of the quaternion, given the rotation matrix's gradient (spec section 3.6).
template <class F>
LG_INLINE Quaternion<F> rotation_backward(const Quaternion<F>& q, const Matrix<F>& e) {
  const F two = F(2.0f);
  const F wx = e.z.y - e.y.z, wy = e.x.z - e.z.x, wz = e.y.x - e.x.y;
  const F xy = e.x.y + e.y.x, xz = e.z.x + e.x.z, yz = e.z.y + e.y.z;
  return {two * (q.x * wx + q.y * wy + q.z * wz), two * (q.y * xy + q.z * xz + q.w * wx - two * q.x * (e.y.y + e.z.z)),
          two * (q.x * xy + q.z * yz + q.w * wy - two * q.y * (e.x.x + e.z.z)),
          two * (q.x * xz + q.y * yz + q.w * wz - two * q.z * (e.x.x + e.y.y))};
}

// Backpropagates through the normalisation.
template <class F>
LG_INLINE Quaternion<F> normalized_backward(const UnitQuaternion<F>& unit, const Quaternion<F>& v) {
  const Quaternion<F>& q = unit.q;
  const F along = fma(q.w, v.w, fma(q.x, v.x, fma(q.y, v.y, q.z * v.z)));
  return {(v.w - q.w * along) * unit.factor, (v.x - q.x * along) * unit.factor, (v.y - q.y * along) * unit.factor,
          (v.z - q.z * along) * unit.factor};
}

LG_END
