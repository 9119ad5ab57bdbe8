// Traversals of the hierarchy of a mesh: the closest triangle, the first hits of rays, and winding numbers.
#pragma once

#include "meshes/cuda/lanes.cuh"
#include "meshes/math/distance.h"
#include "meshes/math/ray.h"
#include "meshes/math/triangle.h"
#include "meshes/math/winding.h"

namespace lumigrad::meshes {

// A squared distance above that of all existing boxes and below that of missing children.
inline constexpr float kNoLimit = 1e34f;

// The lane's vector from three rows of 16 numbers.
__device__ inline Vec<float> vector_of_lane(const float* rows, int lane) {
  return {rows[lane], rows[kWide + lane], rows[2 * kWide + lane]};
}

// The number of threads of a searching block.
inline constexpr int kSearchThreads = 128;

// The bounds of unvisited children, one per level of the tree and lane. In shared memory, since the level is an index.
struct WaitingBounds {
  SharedArray<float, kMaxLevels * kSearchThreads>& all;

  __device__ float& operator[](int level) const { return all[level * kSearchThreads + static_cast<int>(threadIdx.x)]; }
};

// The state that the searches of a warp's two rows share. The whole warp must call them; `on`: whether a row searches.
struct Searcher {
  RowLanes lanes;
  WaitingBounds waiting;
};

// Visits nodes and leaves depth first, the nearest child first, as long as their bounds are below `search.limit`:
//   float bound(const float* boxes, int64_t node)  returns a lower bound for all that the lane's child contains
//   void leaf(int64_t leaf, bool on)               may lower the limit, the same for all lanes; the whole warp calls it
// Each lane keeps the bounds of its own unvisited children, one per level; node numbers follow from the tree's shape.
// Begins with leaf `first` unless it is -1. Ends when both rows' searches have ended; reads `tree` only for rows that
// are on.
template <class Search>
__device__ inline void descend(const Tree& tree, const Searcher& by, Search& search, bool on, int first = -1) {
  if (!RowLanes::either(on)) return;
  const int top = on ? tree.levels - 1 : 0;
  int level = top, leaf = on ? first : -1;
  int node = 0;
  const auto open = [&] {
    const int64_t number = tree.level_begin[level] + node;
    by.waiting[level] = search.bound(tree.boxes + number * (kBoxFloats * kWide), number);
  };
  if (on) open();
  do {
    if (RowLanes::either(leaf >= 0)) search.leaf(leaf, leaf >= 0);
    leaf = -1;
    // The lane's number replaces the last bits of its bound: the order of nearly equal bounds does not matter.
    float bound = INFINITY;
    if (on && by.waiting[level] < search.limit) bound = by.waiting[level];
    const int key = by.lanes.least((bits(bound) & ~(kWide - 1)) | by.lanes.lane);
    if (key >= bits(INFINITY)) {
      on = on && level != top;
      ++level;
      node /= kWide;
    } else {
      const int child = key % kWide;
      if (by.lanes.lane == child) by.waiting[level] = INFINITY;
      node = node * kWide + child;
      if (level == 0) {
        leaf = node;
        node /= kWide;
      } else {
        --level;
        open();
      }
    }
  } while (RowLanes::either(on));
}

// The closest triangle to p that is nearer than `limit`, squared.
struct ClosestSearch {
  const Tree& tree;
  const RowLanes& lanes;
  Vec<float> p;
  float limit;
  int slot;  // -1 if none was found.

  __device__ float bound(const float* boxes, int64_t) const {
    return squared_distance_to_box(p, vector_of_lane(boxes, lanes.lane), vector_of_lane(boxes + 3 * kWide, lanes.lane));
  }
  __device__ void leaf(int64_t leaf, bool on) {
    float squared = INFINITY;
    if (on) {
      const float* t = tree.triangles + leaf * (kTriangleFloats * kWide);
      const Vec<float> w = p - vector_of_lane(t, lanes.lane), u = vector_of_lane(t + 3 * kWide, lanes.lane),
                       v = vector_of_lane(t + 6 * kWide, lanes.lane);
      const Vec<float> rest = rest_of(w, u, v, closest_on_triangle(w, u, v));
      squared = dot(rest, rest);
    }
    const float least = lanes.least(squared);
    const unsigned nearest = lanes.votes(squared == least);
    if (!(least < limit)) return;
    limit = least;
    slot = static_cast<int>(leaf) * kWide + __ffs(static_cast<int>(nearest)) - 1;
  }
};

// The slot of the closest triangle, or -1; `hint` is a slot that may be close, or -1.
__device__ inline int closest_slot(const Tree& tree, const Searcher& by, Vec<float> p, float limit, int hint, bool on) {
  ClosestSearch search = {tree, by.lanes, p, limit, -1};
  descend(tree, by, search, on, hint >= 0 ? hint / kWide : -1);
  return search.slot;
}

// The first hit of the ray from a point along an axis; coordinates are permuted so that this axis is the first.
struct RaySearch {
  const Tree& tree;
  const RowLanes& lanes;
  Vec<float> p;
  int rows[3];  // Offsets of the permuted coordinates, in floats.
  float limit;
  bool back;  // Whether the hit is on the back of a face.

  __device__ Vec<float> vector(const float* at) const {
    return {at[rows[0] + lanes.lane], at[rows[1] + lanes.lane], at[rows[2] + lanes.lane]};
  }
  __device__ float bound(const float* boxes, int64_t) const {
    return ray_to_box(p, vector(boxes), vector(boxes + 3 * kWide));
  }
  __device__ void leaf(int64_t leaf, bool on) {
    RayHit<float> hit = {kMissed, 0.0f};
    if (on) {
      const float* t = tree.triangles + leaf * (kTriangleFloats * kWide);
      hit = ray_to_triangle(p, vector(t), vector(t + 3 * kWide), vector(t + 6 * kWide));
    }
    const float least = lanes.least(hit.distance);
    const unsigned first = lanes.votes(hit.distance == least), facing = lanes.votes(hit.facing > 0.0f);
    if (!(least < limit)) return;
    limit = least;
    back = (facing & first & (0u - first)) != 0;
  }
};

// Whether at least two of the rays along +x, +y and +z hit the back of a face first (spec section 2).
__device__ inline bool inside_by_rays(const Tree& tree, const Searcher& by, Vec<float> p, bool on) {
  const float at[3] = {p.x, p.y, p.z};
  int votes = 0;
  for (int axis = 0; axis < 3; ++axis) {
    // Whether the remaining votes can change the result.
    const bool open = on && votes < 2 && votes + 3 - axis >= 2;
    const int y = (axis + 1) % 3, z = (axis + 2) % 3;
    RaySearch search = {tree, by.lanes, {at[axis], at[y], at[z]}, {axis * kWide, y * kWide, z * kWide}, kMissed, false};
    descend(tree, by, search, open);
    votes += search.back;
  }
  return votes >= 2;
}

// Sums the winding number: distant parts of the mesh by their expansions, near parts triangle by triangle.
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
  __device__ void leaf(int64_t leaf, bool on) {
    if (!on) return;
    const float* t = tree.triangles + leaf * (kTriangleFloats * kWide);
    const Vec<float> a = vector_of_lane(t, lanes.lane) - p, b = a + vector_of_lane(t + 3 * kWide, lanes.lane),
                     c = a + vector_of_lane(t + 6 * kWide, lanes.lane);
    if (tree.faces[leaf * kWide + lanes.lane] >= 0) total += winding_of_triangle(a, b, c);
  }
};

__device__ inline bool inside_by_winding(const Tree& tree, const Searcher& by, Vec<float> p, bool on) {
  WindingSearch search = {tree, by.lanes, p, 0.0f};
  descend(tree, by, search, on);
  return by.lanes.sum(search.total) > 0.5f;
}

}  // namespace lumigrad::meshes
