// Intersections of the ray from a point along +x with boxes and triangles. For rays along y and z, permute the axes to
// (y, z, x) and (z, x, y), which are also right-handed. N is float or a pack.
#pragma once

#include "meshes/math/vector.h"

LG_BEGIN_ENGINE(meshes)

inline constexpr float kMissed = 1e30f;

// A lower bound of the distance along the ray from p to the box; kMissed if the ray misses it.
template <class N>
LG_INLINE N ray_to_box(Vec<N> p, Vec<N> low, Vec<N> high) {
  const auto meets = (p.y >= low.y) & (p.y <= high.y) & (p.z >= low.z) & (p.z <= high.z) & (p.x <= high.x);
  return select(meets, max(low.x - p.x, N(0.0f)), N(kMissed));
}

template <class N>
struct RayHit {
  N distance;  // kMissed if there is no hit.
  N facing;    // Above 0 if the ray meets the back of the triangle.
};

// The hit of the triangle a + s u + t v, including its edges. A ray through an edge shared by two triangles meets one
// or both, and never slips through. No operation is fused, so that both triangles compute the same for the edge.
template <class N>
LG_INLINE RayHit<N> ray_to_triangle(Vec<N> p, Vec<N> a, Vec<N> u, Vec<N> v) {
  const N zero = N(0.0f);
  const Vec<N> b = (a + u) - p, c = (a + v) - p;
  a = a - p;
  const N of_a = b.y * c.z - b.z * c.y, of_b = c.y * a.z - c.z * a.y, of_c = a.y * b.z - a.z * b.y;
  const N facing = of_a + of_b + of_c;
  const auto within = ((of_a >= zero) & (of_b >= zero) & (of_c >= zero) & (facing > zero)) |
                      ((of_a <= zero) & (of_b <= zero) & (of_c <= zero) & (facing < zero));
  const N distance = (of_a * a.x + of_b * b.x + of_c * c.x) / select(within, facing, N(1.0f));
  return {select(within & (distance >= zero), distance, N(kMissed)), facing};
}

LG_END
