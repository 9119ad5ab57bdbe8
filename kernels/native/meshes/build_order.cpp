// The order of triangles in a tree.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "meshes/build.h"
#include "meshes/build_partition.h"
#include "meshes/build_select.h"

namespace lumigrad::meshes {
namespace {

// Triangles that are to be split into children of `size` each, all but the last one full.
struct Range {
  int64_t begin, end, size;
};

// Size of the children of a range, given that of its siblings' children or more.
int64_t child_size(const Range& r) {
  int64_t size = r.size;
  while (size > kWide && r.end - r.begin <= size) size /= kWide;
  return size;
}

// False: it is a leaf.
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
  // Large ranges are split one after another, until there are enough for all threads.
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
