// The signed distance of a point and its derivative, from the closest triangle. Points are in the mesh's frame,
// relative to its centre.
#pragma once

#include "meshes/math/distance.h"
#include "meshes/math/triangle.h"
#include "meshes/params.h"

LG_BEGIN_ENGINE(meshes)

// The closest point of a triangle to p.
struct Foothold {
  Vec<float> rest;    // p minus the closest point.
  float length;       // Length of `rest`.
  Vec<float> normal;  // Pseudo-normal there, of any length.
  bool flat;          // Inside a face: `normal` has length 1, and the derivative of the distance is along it.
  float side;         // 1 in front of the surface, by its normals; -1 behind it.
};

LG_INLINE Vec<float> vector_at(const float* rows, int64_t row) {
  return {rows[3 * row], rows[3 * row + 1], rows[3 * row + 2]};
}

// The pseudo-normal of a face, an edge or a corner: the face's normal, the sum of both faces' normals, or the vertex
// normal (Baerentzen and Aanaes 2005). Faces with nearly no area have no normal, and use those of the faces around
// them.
LG_INLINE Vec<float> pseudo_normal(const Tree& tree, int64_t slot, Feature feature, bool& flat) {
  flat = false;
  if (feature >= kCornerA) return vector_at(tree.vertex_normals, tree.corners[3 * slot + (feature - kCornerA)]);
  Vec<float> normal = vector_at(tree.normals, slot);
  const bool bare = dot(normal, normal) == 0.0f;
  flat = feature == kFace && !bare;
  if (flat) return normal;
  const auto add = [&](int edge) {
    const int32_t other = tree.neighbours[3 * slot + edge];
    if (other >= 0) normal = normal + vector_at(tree.normals, other);
  };
  if (bare) {
    for (int edge = 0; edge < 3; ++edge) add(edge);
  } else {
    add(feature - kEdgeAb);
  }
  return normal;
}

// Closer than this fraction of the mesh's extent, the vector to the surface is computed from the vertices themselves:
// the edges of a triangle are rounded, which changes the vector's direction next to a corner or an edge.
inline constexpr float kNear = 1e-3f;

// The vector to p from the closest point of the edge between two corners. `part`, the point's place on the way from
// `first` to `second`, tells the nearer corner, from which it is measured.
LG_INLINE Vec<float> rest_to_edge(Vec<float> p, Vec<float> first, Vec<float> second, float part) {
  const Vec<float> near = part < 0.5f ? first : second, far = part < 0.5f ? second : first;
  const Vec<float> edge = far - near, w = p - near;
  const float square = dot(edge, edge);
  return along(w, square > 0.0f ? -min(max(dot(w, edge) / square, 0.0f), 1.0f) : 0.0f, edge);
}

LG_INLINE Vec<float> rest_nearby(const Tree& tree, int64_t slot, Feature feature, Foot<float> foot, Vec<float> p,
                                 const Foothold& at) {
  const int32_t* corners = tree.corners + 3 * slot;
  const auto corner = [&](int i) { return vector_at(tree.positions, corners[i]); };
  if (feature >= kCornerA) return p - corner(feature - kCornerA);
  if (feature == kEdgeAb) return rest_to_edge(p, corner(0), corner(1), foot.s);
  if (feature == kEdgeBc) return rest_to_edge(p, corner(1), corner(2), foot.t);
  if (feature == kEdgeCa) return rest_to_edge(p, corner(0), corner(2), foot.t);
  return at.flat ? dot(p - corner(0), at.normal) * at.normal : at.rest;
}

// The foothold of a point that is `rest` away from its foot on the triangle.
LG_INLINE Foothold foothold_at(const Tree& tree, int64_t slot, Foot<float> foot, Vec<float> rest, Vec<float> p) {
  const Feature feature = feature_of(foot);
  Foothold at;
  at.rest = rest;
  at.length = sqrt(dot(rest, rest));
  at.normal = pseudo_normal(tree, slot, feature, at.flat);
  if (at.length < kNear * tree.extent) {
    at.rest = rest_nearby(tree, slot, feature, foot, p, at);
    at.length = sqrt(dot(at.rest, at.rest));
  }
  at.side = dot(at.rest, at.normal) < 0.0f ? -1.0f : 1.0f;
  return at;
}

LG_INLINE Foothold foothold_of(const Tree& tree, int64_t slot, Vec<float> p) {
  const float* leaf = tree.triangles + slot / kWide * (kTriangleFloats * kWide) + slot % kWide;
  const auto corner = [&](int i) { return Vec<float>{leaf[i * kWide], leaf[(i + 1) * kWide], leaf[(i + 2) * kWide]}; };
  const Vec<float> u = corner(3), v = corner(6), w = p - corner(0);
  const Foot<float> foot = closest_on_triangle(w, u, v);
  return foothold_at(tree, slot, foot, rest_of(w, u, v, foot), p);
}

// 1 outside, -1 inside, by the mesh's sign policy; `inside` is the result of the rays or the winding number.
LG_INLINE float sign_of(const Obstacle& mesh, float side, bool inside) {
  if (mesh.sign == Sign::none) return 1.0f;
  if (mesh.sign == Sign::normals) return mesh.orientation < 0.0f ? -side : side;
  return inside ? -1.0f : 1.0f;
}

// Whether a point may be inside the mesh at any distance from the surface: if it is within the mesh's bounds, or if by
// its normals the mesh encloses everything around it.
LG_INLINE bool any_depth(const Obstacle& mesh, float squared_distance_to_bounds) {
  if (mesh.sign == Sign::none) return false;
  const bool around = mesh.sign == Sign::normals && mesh.tree.inverted != (mesh.orientation < 0.0f);
  return around || squared_distance_to_bounds <= 0.0f;
}

// Below this fraction of the mesh's extent the direction to an edge or a corner is lost in rounding, and the
// pseudo-normal is used as the gradient of the distance.
inline constexpr float kLeastWay = 4e-7f;

LG_INLINE Distance<float> contact_of(const Foothold& at, float sign, float extent) {
  if (at.flat) return {sign * at.length, (sign * at.side) * at.normal};
  if (at.length > kLeastWay * extent) return {sign * at.length, (sign / at.length) * at.rest};
  const float square = dot(at.normal, at.normal);
  const float inverse = square > 0.0f ? 1.0f / sqrt(square) : 0.0f;
  return {sign * at.length, (sign * at.side * inverse) * at.normal};
}

// Contact as in cuRobo: the derivative is along the vector from the closest point, and 0 on the surface itself (spec
// section 4).
LG_INLINE Distance<float> contact_of_curobo(const Foothold& at, float sign, float extent) {
  return {sign * at.length, (at.length > kLeastWay * extent ? sign / at.length : 0.0f) * at.rest};
}

// cuRobo's search radius for a mesh (spec section 3); for the field, `inflated` has no activation distance.
LG_INLINE float search_radius_curobo(float inflated, float reach) {
  return inflated > reach ? reach + inflated : reach;
}

LG_END
