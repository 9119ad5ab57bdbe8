// The closest triangle of a mesh to one point: a traversal of the hierarchy, nearest child first, that tests 16 boxes
// or 16 triangles in one pack.
#pragma once

#include "common/cpu/pack.h"
#include "meshes/math/distance.h"
#include "meshes/math/triangle.h"
#include "meshes/params.h"

LG_BEGIN_ENGINE(meshes)

static_assert(kWide == kLanes);

// A place in the hierarchy: its height above the leaves in the high bits, its number within the level in the low bits.
inline constexpr int kHeightShift = 27;
inline constexpr int kNumberMask = (1 << kHeightShift) - 1;
inline constexpr int kTriangleStride = kTriangleFloats * kWide;
inline constexpr int kBoxStride = kBoxFloats * kWide;
inline constexpr int kOrientedStride = kOrientedFloats * kWide;

LG_INLINE int place_of(int height, int number) { return height << kHeightShift | number; }
LG_INLINE int first_child(int place) { return place_of((place >> kHeightShift) - 1, (place & kNumberMask) << 4); }
LG_INLINE int root_of(const Tree& tree) { return place_of(tree.levels, 0); }

// The stack of the traversal: places and lower bounds of their squared distances. Each level pushes all children of a
// node but one.
struct Waiting {
  int count = 0;
  float squared[kMaxLevels * kWide + 2 * kWide];
  int places[kMaxLevels * kWide + 2 * kWide];
};

// The closest triangle so far, where on it the closest point is, and the vector from there to the point.
struct Nearest {
  float squared;
  int slot;  // -1 if no triangle is close enough.
  Foot<float> foot;
  Vec<float> rest;
};

template <class N>
LG_INLINE Vec<Pack> spread(Vec<N> p) {
  return {Pack(p.x), Pack(p.y), Pack(p.z)};
}

LG_INLINE Vec<Pack> load_vec(const float* p) {
  return {Pack::load(p), Pack::load(p + kWide), Pack::load(p + 2 * kWide)};
}

// Lower bounds of the squared distances of a node's children; `height` >= 1.
LG_INLINE Pack bounds_of_children(const Tree& tree, int place, Vec<Pack> p) {
  const int height = place >> kHeightShift;
  const int64_t number = place & kNumberMask;
  if (height == 1) {
    const float* b = tree.oriented + number * kOrientedStride;
    const auto row = [&](int i) {
      const Vec<Pack> r = load_vec(b + i * 3 * kWide);
      return fma(r.z, p.z, fma(r.y, p.y, fma(r.x, p.x, Pack::load(b + (9 + i) * kWide))));
    };
    return squared_distance_to_centred_box(Vec<Pack>{row(0), row(1), row(2)}, load_vec(b + 12 * kWide));
  }
  const float* b = tree.boxes + (tree.level_begin[height - 1] + number) * kBoxStride;
  return squared_distance_to_box(p, load_vec(b), load_vec(b + 3 * kWide));
}

inline void land(Nearest& nearest, int slot, Foot<Pack> foot, Vec<Pack> rest) {
  const int at = slot % kWide;
  nearest.slot = slot;
  nearest.foot = {lane(foot.s, at), lane(foot.t, at)};
  nearest.rest = {lane(rest.x, at), lane(rest.y, at), lane(rest.z, at)};
}

// The triangles of a leaf, and their closest points to p.
struct Leaf {
  Foot<Pack> foot;
  Vec<Pack> rest;
  Pack squared;

  LG_INLINE Leaf(const Tree& tree, int leaf, Vec<Pack> p) {
    const float* t = tree.triangles + static_cast<int64_t>(leaf) * kTriangleStride;
    const Vec<Pack> w = p - load_vec(t), u = load_vec(t + 3 * kWide), v = load_vec(t + 6 * kWide);
    foot = closest_on_triangle(w, u, v);
    rest = rest_of(w, u, v, foot);
    squared = dot(rest, rest);
  }
};

// Searches two leaves at once, since each alone is a long chain of dependent operations.
LG_INLINE void look_into_leaves(const Tree& tree, int one, int two, Vec<Pack> p, Nearest& nearest) {
  const Leaf a(tree, one, p), b(tree, two, p);
  const float least = lowest(min(a.squared, b.squared));
  if (least < nearest.squared) {
    nearest.squared = least;
    const unsigned in_a = to_bits(a.squared == Pack(least));
    if (in_a != 0) {
      land(nearest, one * kWide + __builtin_ctz(in_a), a.foot, a.rest);
    } else {
      land(nearest, two * kWide + __builtin_ctz(to_bits(b.squared == Pack(least))), b.foot, b.rest);
    }
  }
}

LG_INLINE void look_into_leaf(const Tree& tree, int leaf, Vec<Pack> p, Nearest& nearest) {
  const Leaf a(tree, leaf, p);
  const float least = lowest(a.squared);
  if (least < nearest.squared) {
    nearest.squared = least;
    land(nearest, leaf * kWide + __builtin_ctz(to_bits(a.squared == Pack(least))), a.foot, a.rest);
  }
}

// Returns the nearest child that may contain a closer triangle, or -1; pushes the other such children.
LG_INLINE int descend(Pack squared, IntPack places, const Nearest& nearest, Waiting& waiting) {
  const MaskPack close = squared < Pack(nearest.squared);
  const unsigned hits = to_bits(close);
  if (hits == 0) return -1;
  const float least = lowest(squared);
  const unsigned first = to_bits(squared == Pack(least)) & hits;
  const int lane = __builtin_ctz(first);
  const unsigned rest = hits & ~(1u << lane);
  const int kept = waiting.count;
  waiting.count += store_set(mask_from_bits(rest), squared, waiting.squared + kept);
  store_set(mask_from_bits(rest), places, waiting.places + kept);
  return lane;
}

LG_INLINE IntPack numbers_from(int first) {
  alignas(64) static constexpr int kRamp[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return IntPack::load(kRamp) + IntPack(first);
}

// Searches everything below `place` and on the stack that may be nearer than nearest.squared.
LG_INLINE void search(const Tree& tree, Vec<float> point, int place, Nearest& nearest, Waiting& waiting) {
  const Vec<Pack> p = spread(point);
  while (true) {
    while (place >= 0 && place >> kHeightShift > 0) {
      const int first = first_child(place);
      const int lane = descend(bounds_of_children(tree, place, p), numbers_from(first), nearest, waiting);
      place = lane < 0 ? -1 : first + lane;
    }
    if (place >= 0) {
      const int top = waiting.count - 1;
      if (top >= 0 && waiting.places[top] >> kHeightShift == 0 && waiting.squared[top] < nearest.squared) {
        waiting.count = top;
        look_into_leaves(tree, place, waiting.places[top], p, nearest);
      } else {
        look_into_leaf(tree, place, p, nearest);
      }
    }
    do {
      if (waiting.count == 0) return;
      place = waiting.places[--waiting.count];
    } while (waiting.squared[waiting.count] >= nearest.squared);
  }
}

LG_END
