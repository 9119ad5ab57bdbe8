// Vectors of three numbers, and their operations; N is float or a pack.
#pragma once

#include "common/math/number.h"

LG_BEGIN_ENGINE(meshes)

template <class N>
struct Vec {
  N x, y, z;
};

template <class N>
LG_INLINE Vec<N> operator+(Vec<N> a, Vec<N> b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}
template <class N>
LG_INLINE Vec<N> operator-(Vec<N> a, Vec<N> b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}
template <class N>
LG_INLINE Vec<N> operator*(N s, Vec<N> a) {
  return {s * a.x, s * a.y, s * a.z};
}
template <class N>
LG_INLINE N dot(Vec<N> a, Vec<N> b) {
  return fma(a.z, b.z, fma(a.y, b.y, a.x * b.x));
}
template <class N>
LG_INLINE Vec<N> cross(Vec<N> a, Vec<N> b) {
  return {fnma(a.z, b.y, a.y * b.z), fnma(a.x, b.z, a.z * b.x), fnma(a.y, b.x, a.x * b.y)};
}
// a + s b.
template <class N>
LG_INLINE Vec<N> along(Vec<N> a, N s, Vec<N> b) {
  return {fma(s, b.x, a.x), fma(s, b.y, a.y), fma(s, b.z, a.z)};
}
using lumigrad::select;  // For numbers; the overload for vectors would hide it.
template <class M, class N>
LG_INLINE Vec<N> select(M mask, Vec<N> a, Vec<N> b) {
  return {select(mask, a.x, b.x), select(mask, a.y, b.y), select(mask, a.z, b.z)};
}
// m p for a row-major m[9] of numbers or of floats.
template <class N, class F>
LG_INLINE Vec<N> rotated(const F* m, Vec<N> p) {
  return {fma(N(m[2]), p.z, fma(N(m[1]), p.y, N(m[0]) * p.x)), fma(N(m[5]), p.z, fma(N(m[4]), p.y, N(m[3]) * p.x)),
          fma(N(m[8]), p.z, fma(N(m[7]), p.y, N(m[6]) * p.x))};
}
// m^T p.
template <class N, class F>
LG_INLINE Vec<N> rotated_back(const F* m, Vec<N> p) {
  return {fma(N(m[6]), p.z, fma(N(m[3]), p.y, N(m[0]) * p.x)), fma(N(m[7]), p.z, fma(N(m[4]), p.y, N(m[1]) * p.x)),
          fma(N(m[8]), p.z, fma(N(m[5]), p.y, N(m[2]) * p.x))};
}

LG_END
