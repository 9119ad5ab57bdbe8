// The point of a triangle that is closest to another, and which feature of the triangle it lies on. N is float or a
// pack.
#pragma once

#include "meshes/math/vector.h"

LG_BEGIN_ENGINE(meshes)

// Coordinates on the triangle a + s u + t v.
template <class N>
struct Foot {
  N s, t;
};

// The vector from a + s u + t v to p, with w = p - a.
template <class N>
LG_INLINE Vec<N> rest_of(Vec<N> w, Vec<N> u, Vec<N> v, Foot<N> foot) {
  return along(along(w, -foot.s, u), -foot.t, v);
}

// Minimises |w - s u - t v|^2 over s, t >= 0, s + t <= 1: inside, or on the best of the three edges. A triangle without
// an area (its determinant is lost in rounding) counts as its edges, an edge without a length as a point. With the
// first corner opposite the longest edge, u and v are the shorter edges, which keeps slivers accurate in float32.
template <class N>
LG_INLINE Foot<N> closest_on_triangle(Vec<N> w, Vec<N> u, Vec<N> v) {
  const N zero = N(0.0f), one = N(1.0f), tiny = N(1e-30f);
  const N uu = dot(u, u), vv = dot(v, v), uv = dot(u, v), uw = dot(u, w), vw = dot(v, w);
  const N s = fnma(uv, vw, vv * uw), t = fnma(uv, uw, uu * vw), det = fnma(uv, uv, uu * vv);
  const auto inside = (s >= zero) & (t >= zero) & (s + t <= det) & (det > N(2e-6f) * uu * vv);
  const N inverse = quick_inverse(max(det, tiny));
  // The closest points on the edges. Edges are compared by what they leave of w: near a corner, other forms of the
  // distance lose more than the edges differ by.
  const N on_u = min(max(uw * quick_inverse(max(uu, tiny)), zero), one);
  const N on_v = min(max(vw * quick_inverse(max(vv, tiny)), zero), one);
  const N opposite = fma(N(-2.0f), uv, uu + vv);
  const N on_opposite = min(max((vw - uw - uv + uu) * quick_inverse(max(opposite, tiny)), zero), one);
  const N os = one - on_opposite;
  const Vec<N> off_u = along(w, -on_u, u), off_v = along(w, -on_v, v),
               off_opposite = rest_of(w, u, v, {os, on_opposite});
  const N value_u = dot(off_u, off_u), value_v = dot(off_v, off_v), value_opposite = dot(off_opposite, off_opposite);
  const auto u_wins = (value_u <= value_v) & (value_u <= value_opposite);
  const auto v_wins = value_v <= value_opposite;
  Foot<N> foot;
  foot.s = select(inside, s * inverse, select(u_wins, on_u, select(v_wins, zero, os)));
  foot.t = select(inside, t * inverse, select(u_wins, zero, select(v_wins, on_v, on_opposite)));
  return foot;
}

// Features: kFace, or an edge or a corner of the triangle.
enum Feature : int { kFace, kEdgeAb, kEdgeBc, kEdgeCa, kCornerA, kCornerB, kCornerC };

// The feature follows from what closest_on_triangle clamped, not from tolerances.
LG_INLINE Feature feature_of(Foot<float> foot) {
  const float s = foot.s, t = foot.t, sum = s + t;
  if (t <= 0.0f) return s <= 0.0f ? kCornerA : s >= 1.0f ? kCornerB : kEdgeAb;
  if (s <= 0.0f) return t >= 1.0f ? kCornerC : kEdgeCa;
  return sum >= 1.0f ? kEdgeBc : kFace;
}

LG_END
