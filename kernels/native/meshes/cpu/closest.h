// The closest triangles of a mesh to many points; the result for a point bounds the search for its neighbours.
#pragma once

#include "meshes/cpu/search.h"

LG_BEGIN_ENGINE(meshes)

// Points in the mesh's frame, in an order in which neighbours are close to each other.
struct Points {
  const float *x, *y, *z;
  int count;

  LG_INLINE Vec<float> at(int i) const { return {x[i], y[i], z[i]}; }
};

// Recently found points of the surface: the closest one bounds the next search.
class Recent {
 public:
  LG_INLINE Recent() {
    for (int i = 0; i < kWide; ++i) x_[i] = y_[i] = z_[i] = kNowhere;
  }
  LG_INLINE void add(Vec<float> p) {
    x_[next_] = p.x;
    y_[next_] = p.y;
    z_[next_] = p.z;
    next_ = (next_ + 1) % kWide;
  }
  // A little more than the squared distance to the closest recent point, which is off the surface by up to `slack`, so
  // that its own triangle is found again.
  LG_INLINE float bound(Vec<float> p, float slack) const {
    const Vec<Pack> d = spread(p) - Vec<Pack>{Pack::load(x_), Pack::load(y_), Pack::load(z_)};
    const float most = fma(sqrt(lowest(dot(d, d))), 1.00001f, slack);
    return most * most;
  }

 private:
  static constexpr float kNowhere = 1e18f;
  alignas(64) float x_[kWide];
  alignas(64) float y_[kWide];
  alignas(64) float z_[kWide];
  int next_ = 0;
};

// The few subtrees that must contain the results of a group of neighbouring points: their places and boxes, tested
// like the children of a node.
struct Entry {
  alignas(64) float boxes[kBoxStride];
  alignas(64) int places[kWide];
  int count;  // Negative: everything, from the root.
};

inline void clear(Entry& entry) {
  for (int i = 0; i < 3 * kWide; ++i) {
    entry.boxes[i] = 1e18f;
    entry.boxes[3 * kWide + i] = -1e18f;
  }
  entry.count = 0;
}

inline void add(Entry& entry, const float* boxes, int lane, int place) {
  for (int k = 0; k < kBoxFloats; ++k) entry.boxes[k * kWide + entry.count] = boxes[k * kWide + lane];
  entry.places[entry.count++] = place;
}

// Finds where the search of points around `centre` begins if their answers lie within `reach` of it: replaces places by
// their children as long as all children that may hold an answer fit.
inline void enter(const Tree& tree, Vec<float> centre, float reach, Entry& entry) {
  const Vec<Pack> p = spread(centre);
  int open[kWide] = {root_of(tree)};
  int count = 1;
  Entry made;
  clear(entry);
  while (true) {
    clear(made);
    bool fits = true, deeper = false;
    for (int i = 0; i < count && fits; ++i) {
      const int height = open[i] >> kHeightShift, first = first_child(open[i]);
      const float* boxes = tree.boxes + (tree.level_begin[height - 1] + (open[i] & kNumberMask)) * int64_t{kBoxStride};
      const Pack bounds = squared_distance_to_box(p, load_vec(boxes), load_vec(boxes + 3 * kWide));
      const unsigned near = to_bits(bounds <= Pack(reach * reach));
      fits = made.count + __builtin_popcount(near) <= kWide;
      if (!fits) break;
      for (unsigned rest = near; rest != 0; rest &= rest - 1) {
        add(made, boxes, __builtin_ctz(rest), first + __builtin_ctz(rest));
      }
      deeper = height > 1;
    }
    if (!fits) return;
    entry = made;
    if (!deeper) return;
    count = made.count;
    for (int i = 0; i < count; ++i) open[i] = made.places[i];
  }
}

LG_INLINE void search_from(const Tree& tree, const Entry& entry, Vec<float> point, Nearest& nearest, Waiting& waiting) {
  waiting.count = 0;
  if (entry.count < 0) return search(tree, point, root_of(tree), nearest, waiting);
  const Pack bounds = squared_distance_to_box(spread(point), load_vec(entry.boxes), load_vec(entry.boxes + 3 * kWide));
  const int lane = descend(bounds, IntPack::load(entry.places), nearest, waiting);
  if (lane >= 0) search(tree, point, entry.places[lane], nearest, waiting);
}

// The error of a point of the surface, and of a distance near it, from rounding the corners of triangles.
LG_INLINE float slack_of(const Tree& tree) { return 1e-6f * tree.extent; }

// A squared distance below that of the boxes of missing children, which must not be visited.
inline constexpr float kEverywhere = 1e35f;

// A group of kGroup points shares an entry, which does not pay for fewer than kLeastGroup.
inline constexpr int kGroup = 64, kLeastGroup = 16;

// Computes the entry of points begin .. end - 1. The distance of each point from the surface is at most the centre's
// distance plus its own distance from the centre, and its search is limited by its own radius.
inline void enter_group(const Tree& tree, const Points& points, int begin, int end, const Nearest* found,
                        const Recent& recent, Entry& entry, Waiting& waiting) {
  Vec<float> low = points.at(begin), high = low;
  float limit = 0.0f;
  for (int i = begin; i < end; ++i) {
    const Vec<float> p = points.at(i);
    low = {min(low.x, p.x), min(low.y, p.y), min(low.z, p.z)};
    high = {max(high.x, p.x), max(high.y, p.y), max(high.z, p.z)};
    limit = max(limit, found[i].squared);
  }
  const Vec<float> centre = 0.5f * (low + high), half = 0.5f * (high - low);
  const float radius = sqrt(dot(half, half)), reach = (sqrt(limit) + radius) * 1.00001f;
  Nearest nearest;
  nearest.squared = min(min(recent.bound(centre, slack_of(tree)), reach * reach), kEverywhere);
  waiting.count = 0;
  search(tree, centre, root_of(tree), nearest, waiting);
  const float most = fma(sqrt(nearest.squared) + 2.0f * radius, 1.00001f, slack_of(tree));
  enter(tree, centre, min(most, reach), entry);
}

// found[i].squared is an upper bound on entry, and the squared distance on return; slot is -1 if no triangle is as
// close.
inline void find_closest(const Tree& tree, const Points& points, Nearest* found, Recent& recent, Waiting& waiting) {
  Entry entry;
  for (int begin = 0; begin < points.count; begin += kGroup) {
    const int end = begin + kGroup < points.count ? begin + kGroup : points.count;
    entry.count = -1;
    if (end - begin >= kLeastGroup) enter_group(tree, points, begin, end, found, recent, entry, waiting);
    for (int i = begin; i < end; ++i) {
      const Vec<float> p = points.at(i);
      const float limit = min(found[i].squared, kEverywhere), bound = recent.bound(p, slack_of(tree));
      Nearest& nearest = found[i];
      nearest.squared = min(bound, limit);
      nearest.slot = -1;
      search_from(tree, entry, p, nearest, waiting);
      // Distances to slivers may be rounded by more.
      if (nearest.slot < 0 && bound < limit) {
        nearest.squared = limit;
        waiting.count = 0;
        search(tree, p, root_of(tree), nearest, waiting);
      }
      if (nearest.slot >= 0) recent.add(p - nearest.rest);
    }
  }
}

LG_END
