// Distances from a point to boxes and cuboids. N is float or a pack.
#pragma once

#include "meshes/math/vector.h"

LG_BEGIN_ENGINE(meshes)

// A signed distance, positive outside, and its derivative with respect to the point.
template <class N>
struct Distance {
  N value;
  Vec<N> gradient;
};

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

// The signed distance from a point in the cuboid's frame to the cuboid with these half edges around the origin, the
// same for exact and cuRobo's semantics (spec section 8): outside the Euclidean distance; inside minus the distance to
// the nearest face, where ties prefer y, then x, then z. The surface belongs to the inside, so that the derivative
// always has length 1. The closest point of the surface is p - value * gradient.
template <class N>
LG_INLINE Distance<N> distance_to_cuboid(Vec<N> p, Vec<N> half) {
  const N zero = N(0.0f), one = N(1.0f);
  const Vec<N> q = {abs(p.x) - half.x, abs(p.y) - half.y, abs(p.z) - half.z};
  const Vec<N> way = {max(q.x, zero), max(q.y, zero), max(q.z, zero)};
  const N square = dot(way, way), length = sqrt(square);
  const auto outside = square > zero;
  const N inverse = one / select(outside, length, one);
  const auto y_first = (q.y >= q.x) & (q.y >= q.z);
  const auto x_first = q.x >= q.z;
  const N inside_y = select(y_first, one, zero), rest = one - inside_y;
  const N inside_x = select(x_first, rest, zero), inside_z = rest - inside_x;
  const N nearest = select(y_first, q.y, select(x_first, q.x, q.z));
  const Vec<N> along_axis = {select(outside, way.x * inverse, inside_x), select(outside, way.y * inverse, inside_y),
                             select(outside, way.z * inverse, inside_z)};
  return {select(outside, length, min(nearest, zero)),
          {select(p.x < zero, -along_axis.x, along_axis.x), select(p.y < zero, -along_axis.y, along_axis.y),
           select(p.z < zero, -along_axis.z, along_axis.z)}};
}

LG_END
