// The order in which rows are evaluated: without rows that are off, grouped by environment, and within an environment
// along a space-filling curve.
#pragma once

#include "common/cpu/radix_sort.h"
#include "meshes/cpu/engine.h"
#include "meshes/math/row.h"

LG_BEGIN_ENGINE(meshes)

// Fewer rows are evaluated in their given order, by the calling thread alone: sorting and waking threads would cost
// more than they save.
inline constexpr int64_t kFewRows = 512;
inline constexpr int kMaxSortParts = 64;

inline int64_t row_count(const Spheres& s) { return int64_t{s.batches} * s.horizon * s.count; }

inline int environment_of(const Spheres& s, int64_t row) {
  return s.environments == nullptr ? 0 : s.environments[row / (int64_t{s.horizon} * s.count)];
}

struct Box {
  float low[3], high[3];

  LG_INLINE void add(const float* p) {
    for (int k = 0; k < 3; ++k) {
      low[k] = min(p[k], low[k]);
      high[k] = max(p[k], high[k]);
    }
  }
};

// Spreads the low eight bits of `a` to every third bit.
LG_INLINE uint32_t every_third(uint32_t a) {
  a = (a | a << 8) & 0x00f00f;
  a = (a | a << 4) & 0x0c30c3;
  return (a | a << 2) & 0x249249;
}

// Keys with the environment in the high bits, and the cell of a 256^3 grid along a Morton curve in the low bits.
struct RowKey {
  float origin[3], scale;

  explicit RowKey(const Box& box) {
    float extent = 1e-30f;
    for (int k = 0; k < 3; ++k) {
      origin[k] = box.low[k];
      extent = max(extent, box.high[k] - box.low[k]);
    }
    scale = 255.99f / extent;
    // Rows that are off may be at infinity; then all rows keep their given order.
    if (extent == INFINITY) origin[0] = origin[1] = origin[2] = 0.0f;
  }
  LG_INLINE uint32_t operator()(const float* p, int environment) const {
    uint32_t code = 0;
    for (int k = 0; k < 3; ++k) {
      code |= every_third(static_cast<uint32_t>(truncate((p[k] - origin[k]) * scale))) << k;
    }
    return static_cast<uint32_t>(environment & 255) << 24 | code;
  }
};

// The rows to evaluate: order[i] & 0xffffffff.
struct Order {
  const uint64_t* rows;
  int64_t count;

  LG_INLINE int64_t operator[](int64_t i) const { return static_cast<int64_t>(rows[i] & 0xffffffffu); }
};

inline Order order_as_given(const Spheres& spheres, uint64_t* rows) {
  int64_t count = 0;
  for (int64_t i = 0, all = row_count(spheres); i < all; ++i) {
    if (sphere_at(spheres.rows, i).on()) rows[count++] = static_cast<uint64_t>(i);
  }
  return {rows, count};
}

inline Order order_rows(const Spheres& spheres, Workspace& w) {
  const int64_t all = row_count(spheres);
  uint64_t* rows = w.order.ensure<uint64_t>(all);
  if (all <= kFewRows) return order_as_given(spheres, rows);
  const int threads = thread_count(), parts = threads < kMaxSortParts ? threads : kMaxSortParts;
  Box boxes[kMaxSortParts];
  int64_t begin[kMaxSortParts], length[kMaxSortParts];
  for_parts(parts, [&](int p) {
    Box box = {{INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}};
    for (int64_t i = all * p / parts; i < all * (p + 1) / parts; ++i) box.add(spheres.rows + 4 * i);
    boxes[p] = box;
  });
  for (int p = 1; p < parts; ++p) {
    boxes[0].add(boxes[p].low);
    boxes[0].add(boxes[p].high);
  }
  const RowKey key(boxes[0]);
  for_parts(parts, [&](int p) {
    begin[p] = all * p / parts;
    uint64_t* to = rows + begin[p];
    for (int64_t i = begin[p]; i < all * (p + 1) / parts; ++i) {
      if (!sphere_at(spheres.rows, i).on()) continue;
      *to++ = uint64_t{key(spheres.rows + 4 * i, environment_of(spheres, i))} << 32 | static_cast<uint64_t>(i);
    }
    length[p] = to - (rows + begin[p]);
  });
  uint32_t* histogram = w.scratch.ensure<uint32_t>(static_cast<std::size_t>(parts) * kRadix);
  const uint64_t* sorted = radix_sort(rows, w.keys.ensure<uint64_t>(all), begin, length, parts, histogram);
  int64_t count = 0;
  for (int p = 0; p < parts; ++p) count += length[p];
  return {sorted, count};
}

LG_END
