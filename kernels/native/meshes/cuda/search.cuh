// Traversals of the hierarchy of a mesh: the closest triangle, the first hits of rays, and winding numbers.
#pragma once

#include "meshes/cuda/lanes.cuh"
#include "meshes/math/distance.h"
#include "meshes/math/ray.h"
#include "meshes/math/triangle.h"
#include "meshes/math/winding.h"

namespace lumigrad::meshes {

// A squared distance above all those to existing boxes and below those to missing children.
inline constexpr float kNoLimit = 1e34f;

// A row of 16 numbers, one for each lane.
__device__ inline Vec<float> vector_of_lane(const float* rows, int lane) {
  return {rows[lane], rows[kWide + lane], rows[2 * kWide + lane]};
}

// Visits nodes and leaves depth first, the nearest child first, as long as their bounds are below `search.limit`:
//   float bound(const float* boxes, int64_t node)  returns a lower bound for all that the lane's child contains
//   void leaf(int64_t leaf)                        may lower the limit, the same for all lanes
// Each lane keeps the bounds of its own unvisited children, one per level; node numbers follow from the tree's shape.
template <class Search>
__device__ inline void descend(const Tree& tree, const RowLanes& lanes, Search& search) {
  float waiting[kMaxLevels];
  const int top = tree.levels - 1;
  int level = top;
  int64_t node = 0;
  const auto open = [&] {
    const int64_t number = tree.level_begin[level] + node;
    waiting[level] = search.bound(tree.boxes + number * (kBoxFloats * kWide), number);
  };
  open();
  while (true) {
    // The lane's number replaces the last bits of its bound: the order of nearly equal bounds does not matter.
    const float bound = waiting[level] < search.limit ? waiting[level] : INFINITY;
    const int key = lanes.least((bits(bound) & ~(kWide - 1)) | lanes.lane);
    if (key >= bits(INFINITY)) {
      if (level == top) return;
      ++level;
      node /= kWide;
      continue;
    }
    const int child = key % kWide;
    if (lanes.lane == child) waiting[level] = INFINITY;
    if (level == 0) {
      search.leaf(node * kWide + child);
    } else {
      --level;
      node = node * kWide + child;
      open();
    }
  }
}

// The closest triangle to p that is nearer than `limit`, squared.
struct ClosestSearch {
  const Tree& tree;
  const RowLanes& lanes;
  Vec<float> p;
  float limit;
  int slot;  // -1: none was found.

  __device__ float bound(const float* boxes, int64_t) const {
    return squared_distance_to_box(p, vector_of_lane(boxes, lanes.lane), vector_of_lane(boxes + 3 * kWide, lanes.lane));
  }
  __device__ void leaf(int64_t leaf) {
    const float* t = tree.triangles + leaf * (kTriangleFloats * kWide);
    const Vec<float> w = p - vector_of_lane(t, lanes.lane), u = vector_of_lane(t + 3 * kWide, lanes.lane),
                     v = vector_of_lane(t + 6 * kWide, lanes.lane);
    const Vec<float> rest = rest_of(w, u, v, closest_on_triangle(w, u, v));
    const float squared = dot(rest, rest), least = lanes.least(squared);
    if (!(least < limit)) return;
    limit = least;
    slot = static_cast<int>(leaf) * kWide + lanes.first(squared == least);
  }
};

// `hint` is a slot that may be close, or -1.
__device__ inline int closest_slot(const Tree& tree, const RowLanes& lanes, Vec<float> p, float limit, int hint) {
  ClosestSearch search = {tree, lanes, p, limit, -1};
  if (hint >= 0) search.leaf(hint / kWide);
  descend(tree, lanes, search);
  return search.slot;
}

// The first hit of the ray from a point along an axis; coordinates are permuted so that this axis is the first.
struct RaySearch {
  const Tree& tree;
  const RowLanes& lanes;
  Vec<float> p;
  int rows[3];  // Offsets of the permuted coordinates, in floats.
  float limit;
  bool back;  // The hit is on the back of a face.

  __device__ Vec<float> vector(const float* at) const {
    return {at[rows[0] + lanes.lane], at[rows[1] + lanes.lane], at[rows[2] + lanes.lane]};
  }
  __device__ float bound(const float* boxes, int64_t) const {
    return ray_to_box(p, vector(boxes), vector(boxes + 3 * kWide));
  }
  __device__ void leaf(int64_t leaf) {
    const float* t = tree.triangles + leaf * (kTriangleFloats * kWide);
    const RayHit<float> hit = ray_to_triangle(p, vector(t), vector(t + 3 * kWide), vector(t + 6 * kWide));
    const float least = lanes.least(hit.distance);
    if (!(least < limit)) return;
    limit = least;
    back = lanes.from(hit.facing > 0.0f, lanes.first(hit.distance == least)) != 0;
  }
};

// Whether at least two of the rays along +x, +y and +z hit the back of a face first (spec section 2).
__device__ inline bool inside_by_rays(const Tree& tree, const RowLanes& lanes, Vec<float> p) {
  const float at[3] = {p.x, p.y, p.z};
  int votes = 0;
  for (int axis = 0; axis < 3 && votes < 2 && votes + 3 - axis >= 2; ++axis) {
    const int y = (axis + 1) % 3, z = (axis + 2) % 3;
    RaySearch search = {tree, lanes, {at[axis], at[y], at[z]}, {axis * kWide, y * kWide, z * kWide}, kMissed, false};
    descend(tree, lanes, search);
    votes += search.back;
  }
  return votes >= 2;
}

// Sums the winding number: far parts of the mesh by their expansions, near ones triangle by triangle.
struct WindingSearch {
  const Tree& tree;
  const RowLanes& lanes;
  Vec<float> p;
  float total;  // The lane's.
  static constexpr float limit = 1.0f;

  // Adds the lane's child if it is far; otherwise returns a bound below the limit, so that it is visited.
  __device__ float bound(const float*, int64_t node) {
    const float* d = tree.dipoles + node * (kDipoleFloats * kWide);
    const Vec<float> r = vector_of_lane(d + kDipoleCentre * kWide, lanes.lane) - p;
    if (!(dot(r, r) > d[kDipoleReach * kWide + lanes.lane])) return 0.0f;
    total += winding_of_part(r, [&](int row) { return d[row * kWide + lanes.lane]; });
    return INFINITY;
  }
  __device__ void leaf(int64_t leaf) {
    const float* t = tree.triangles + leaf * (kTriangleFloats * kWide);
    const Vec<float> a = vector_of_lane(t, lanes.lane) - p, b = a + vector_of_lane(t + 3 * kWide, lanes.lane),
                     c = a + vector_of_lane(t + 6 * kWide, lanes.lane);
    if (tree.faces[leaf * kWide + lanes.lane] >= 0) total += winding_of_triangle(a, b, c);
  }
};

__device__ inline bool inside_by_winding(const Tree& tree, const RowLanes& lanes, Vec<float> p) {
  WindingSearch search = {tree, lanes, p, 0.0f};
  descend(tree, lanes, search);
  return lanes.sum(search.total) > 0.5f;
}

}  // namespace lumigrad::meshes
