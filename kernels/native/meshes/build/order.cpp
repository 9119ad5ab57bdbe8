// The order of triangles in a tree.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "meshes/build/partition.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

// Selection of the records with the smallest keys, like std::nth_element, but without an unpredictable branch per
// record, in little more than one and a half passes.

// The axis along which the records' extent is largest, and its ends.
struct Span {
  int axis;
  float low, high;
};

inline Span widest_span(const Centroid* records, int64_t count) {
  // A record is one vector; the result for its last element, the face, is ignored.
  typedef float Four __attribute__((vector_size(16), may_alias));
  static_assert(sizeof(Centroid) == sizeof(Four));
  const auto load = [&](int64_t i) {
    Four four;
    __builtin_memcpy(&four, records + i, sizeof(four));
    return four;
  };
  Four low = load(0), high = low;
  for (int64_t i = 1; i < count; ++i) {
    const Four here = load(i);
    low = here < low ? here : low;
    high = here > high ? here : high;
  }
  const Four wide = high - low;
  const int axis = wide[1] > wide[0] ? (wide[2] > wide[1] ? 2 : 1) : (wide[2] > wide[0] ? 2 : 0);
  return {axis, low[axis], high[axis]};
}

// Moves the records for which is_low(record, place) holds to the front; returns their number.
template <class IsLow>
int64_t divide(Centroid* records, int64_t count, const IsLow& is_low) {
  int64_t low = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Centroid moved = records[i], other = records[low];
    records[i] = other;
    records[low] = moved;
    low += is_low(moved, i);
  }
  return low;
}

inline constexpr int kFew = 512;

// Selects from at most kFew records, by bisection of the key that divides them.
inline void select_of_few(Centroid* records, int count, int wanted, const Span& span) {
  alignas(64) int keys[kFew];
  const float scale = span.high > span.low ? 65535.0f / (span.high - span.low) : 0.0f;
  for (int i = 0; i < count; ++i) {
    const float place = (records[i].at[span.axis] - span.low) * scale;
    keys[i] = static_cast<int>(place > 0.0f ? (place < 65535.0f ? place : 65535.0f) : 0.0f) * kFew + i;  // All differ.
  }
  int low = 0, high = 65536 * kFew, middle = 0, below = 0;
  while (below != wanted) {
    middle = low + (high - low) / 2;
    below = 0;
    for (int i = 0; i < count; ++i) below += keys[i] < middle;
    (below < wanted ? low : high) = middle;
  }
  divide(records, count, [&](const Centroid&, int64_t i) { return keys[i] < middle; });
}

// A key below which there are about `wanted` records, estimated from a sample. It is shifted toward the middle, so that
// record number `wanted` is most likely in the smaller part.
inline float pivot_for(const Centroid* records, int64_t count, int64_t wanted, int axis) {
  constexpr int kMost = 1024;
  float sample[kMost];
  const int size = static_cast<int>(std::min<int64_t>(static_cast<int64_t>(2.0 * std::sqrt(count)), kMost));
  for (int i = 0; i < size; ++i) sample[i] = records[(2 * i + 1) * count / (2 * size)].at[axis];
  const double share = static_cast<double>(wanted) / static_cast<double>(count);
  const double spread = 1.5 * std::sqrt(size * share * (1.0 - share)) + 0.5;
  const double place = share * size + (share < 0.5 ? spread : -spread);
  const int at = std::clamp(static_cast<int>(place), 0, size - 1);
  std::nth_element(sample, sample + at, sample + size);
  return sample[at];
}

// Moves the `wanted` lowest records along the span's axis to the front, up to rounding of the keys.
inline void select_lowest(Centroid* records, int64_t count, int64_t wanted, Span span) {
  const int axis = span.axis;
  while (count > kFew && wanted > 0 && wanted < count) {
    const float pivot = pivot_for(records, count, wanted, axis);
    int64_t low = divide(records, count, [&](const Centroid& c, int64_t) { return c.at[axis] < pivot; });
    if (low == 0) {
      low = divide(records, count, [&](const Centroid& c, int64_t) { return c.at[axis] <= pivot; });
      if (wanted <= low || low == 0) return;
    }
    if (wanted < low) {
      count = low;
      span.high = pivot;
    } else {
      records += low;
      count -= low;
      wanted -= low;
      span.low = pivot;
    }
  }
  if (wanted > 0 && wanted < count) {
    select_of_few(records, static_cast<int>(count), static_cast<int>(wanted), span);
  }
}

// Triangles to be split into children of `size` triangles each; the last child may have fewer.
struct Range {
  int64_t begin, end, size;
};

// The number of triangles of each child of the range: r.size, or less if the whole range fits into one such child.
int64_t child_size(const Range& r) {
  int64_t size = r.size;
  while (size > kWide && r.end - r.begin <= size) size /= kWide;
  return size;
}

// Splits a range into halves; returns false if the range is one leaf.
bool split(Centroid* centroids, const Range& whole, Range halves[2]) {
  const int64_t count = whole.end - whole.begin, size = child_size(whole);
  const int64_t children = (count + size - 1) / size;
  if (children <= 1) return false;
  const int64_t middle = whole.begin + children / 2 * size;
  Centroid* records = centroids + whole.begin;
  select_lowest(records, count, middle - whole.begin, widest_span(records, count));
  halves[0] = {whole.begin, middle, size};
  halves[1] = {middle, whole.end, size};
  return true;
}

void order_range(Centroid* centroids, const Range& range) {
  Range halves[2];
  if (!split(centroids, range, halves)) return;
  order_range(centroids, halves[0]);
  order_range(centroids, halves[1]);
}

}  // namespace

Levels shape_of(int64_t triangles) {
  Levels shape{};
  shape.leaves = static_cast<int32_t>((triangles + kWide - 1) / kWide);
  int64_t nodes = shape.leaves;
  do {
    nodes = (nodes + kWide - 1) / kWide;
    shape.level_begin[shape.levels + 1] = shape.level_begin[shape.levels] + static_cast<int32_t>(nodes);
    ++shape.levels;
  } while (nodes > 1);
  return shape;
}

void order_triangles(Centroid* centroids, int64_t count) {
  const Levels shape = shape_of(count);
  int64_t size = kWide;
  for (int level = 1; level < shape.levels; ++level) size *= kWide;
  // All ranges are split in parallel, level by level, until there are enough ranges for all threads.
  std::vector<Range> ranges{{0, count, size}};
  const std::size_t enough = 8 * static_cast<std::size_t>(thread_count());
  while (!ranges.empty() && ranges.size() < enough && count > 4096) {
    std::vector<Range> next(2 * ranges.size());
    std::vector<uint8_t> whole(ranges.size());
    for_parts(static_cast<int>(ranges.size()),
              [&](int i) { whole[i] = !split(centroids, ranges[i], next.data() + 2 * i); });
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (whole[i]) next[2 * i] = next[2 * i + 1] = {0, 0, kWide};
    }
    std::erase_if(next, [](const Range& r) { return r.end - r.begin <= kWide; });
    ranges = std::move(next);
  }
  for_parts(static_cast<int>(ranges.size()), [&](int i) { order_range(centroids, ranges[i]); });
}

}  // namespace lumigrad::meshes
