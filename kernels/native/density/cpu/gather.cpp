// Copies rows into the arrays of the next generation.
#include <cstring>

#include "common/cpu/pack.h"
#include "density/cpu/loops.h"
#include "density/math/split.h"

LG_BEGIN_ENGINE(density)
namespace {

template <int kWidth>
void copy_narrow(const int32_t* sources, int64_t begin, int64_t end, const Column& column) {
  for (int64_t i = begin; i < end; ++i) {
    for (int k = 0; k < kWidth; ++k) {
      column.to[kWidth * i + k] = column.from[kWidth * static_cast<int64_t>(sources[i]) + k];
    }
  }
}

// Copies rows of whole packs, past the cache, since memory bandwidth is the bottleneck.
void copy_packs(const int32_t* sources, int64_t begin, int64_t end, const Column& column) {
  const int64_t width = column.width;
  for (int64_t i = begin; i < end; ++i) {
    const float* from = column.from + width * sources[i];
    float* to = column.to + width * i;
    for (int64_t k = 0; k < width; k += kLanes) stream(load_unaligned(from + k), to + k);
  }
}

// Copies runs of consecutive rows at once, since most rows stay.
void copy_wide(const int32_t* sources, int64_t begin, int64_t end, const Column& column) {
  const int64_t width = column.width;
  for (int64_t i = begin; i < end;) {
    int64_t run = 1;
    while (i + run < end && sources[i + run] == sources[i] + run) ++run;
    std::memcpy(column.to + width * i, column.from + width * sources[i],
                sizeof(float) * static_cast<std::size_t>(width * run));
    i += run;
  }
}

void copy_rows(const int32_t* sources, int64_t begin, int64_t end, const Column& column) {
  switch (column.width) {
    case 1:
      return copy_narrow<1>(sources, begin, end, column);
    case 3:
      return copy_narrow<3>(sources, begin, end, column);
    case 4:
      return copy_narrow<4>(sources, begin, end, column);
    default:
      if (column.width % kLanes == 0 && reinterpret_cast<uintptr_t>(column.to) % 64 == 0) {
        return copy_packs(sources, begin, end, column);
      }
      return copy_wide(sources, begin, end, column);
  }
}

}  // namespace

void gather(const Generation& next, const Column* columns, int count) {
  each_chunk(next.count, [&](int, int64_t begin, int64_t end) {
    for (int c = 0; c < count; ++c) {
      const Column& column = columns[c];
      int64_t fresh = end;
      if (column.fresh && next.kept < end) fresh = next.kept > begin ? next.kept : begin;
      copy_rows(next.sources, begin, fresh, column);
      // The pointer may be null if there is nothing to clear.
      if (fresh == end) continue;
      std::memset(column.to + column.width * fresh, 0,
                  sizeof(float) * static_cast<std::size_t>(column.width * (end - fresh)));
    }
  });
}

void split(const Children& children, const Draw& first, const Draw& second) {
  each_chunk(children.count, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) make_children(children, first, second, i);
  });
}

LG_END
