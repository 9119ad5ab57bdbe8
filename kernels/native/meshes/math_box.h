// How far a point is from a box. N is float or a pack.
#pragma once

#include "meshes/math_vector.h"

LG_BEGIN_ENGINE(meshes)

// Squared distance to the box from `low` to `high`; 0 inside.
template <class N>
LG_INLINE N squared_distance_to_box(Vec<N> p, Vec<N> low, Vec<N> high) {
  const N zero = N(0.0f);
  const N x = max(max(low.x - p.x, p.x - high.x), zero);
  const N y = max(max(low.y - p.y, p.y - high.y), zero);
  const N z = max(max(low.z - p.z, p.z - high.z), zero);
  return fma(z, z, fma(y, y, x * x));
}

// Squared distance from a point in the box's own frame to a box of these half extents around the origin.
template <class N>
LG_INLINE N squared_distance_to_centred_box(Vec<N> p, Vec<N> half) {
  const N zero = N(0.0f);
  const N x = max(abs(p.x) - half.x, zero), y = max(abs(p.y) - half.y, zero), z = max(abs(p.z) - half.z, zero);
  return fma(z, z, fma(y, y, x * x));
}

LG_END
