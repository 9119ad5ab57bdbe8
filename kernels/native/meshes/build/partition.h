// Stable partition of many small items into bins, in parallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/pool.h"
#include "common/threads.h"

namespace lumigrad::meshes {

// The number of parts into which a loop over `count` items is split: each has at least `least` items, unless there
// is only one.
static inline int parts_for(int64_t count, int64_t least = 4096) {
  return static_cast<int>(std::clamp<int64_t>(count / least, 1, 4 * thread_count()));
}

template <class Entry>
struct Partition {
  Array<Entry> entries;
  std::vector<int64_t> begin;  // [bins + 1]
};

// Puts the entry make(i) of each item i into the bin bin_of(make(i)).
template <class Entry, class Make, class BinOf>
Partition<Entry> partition(int64_t count, int bins, const Make& make, const BinOf& bin_of) {
  Partition<Entry> result{Array<Entry>(static_cast<std::size_t>(count)), std::vector<int64_t>(bins + 1)};
  const int parts = parts_for(count);
  std::vector<int64_t> next(static_cast<std::size_t>(parts) * bins, 0);
  const auto from = [&](int p) { return count * p / parts; };
  for_parts(parts, [&](int p) {
    int64_t* mine = next.data() + static_cast<int64_t>(p) * bins;
    for (int64_t i = from(p); i < from(p + 1); ++i) ++mine[bin_of(make(i))];
  });
  int64_t sum = 0;
  for (int bin = 0; bin < bins; ++bin) {
    result.begin[bin] = sum;
    for (int p = 0; p < parts; ++p) {
      const int64_t here = next[static_cast<int64_t>(p) * bins + bin];
      next[static_cast<int64_t>(p) * bins + bin] = sum;
      sum += here;
    }
  }
  result.begin[bins] = sum;
  for_parts(parts, [&](int p) {
    int64_t* mine = next.data() + static_cast<int64_t>(p) * bins;
    for (int64_t i = from(p); i < from(p + 1); ++i) {
      const Entry entry = make(i);
      result.entries[mine[bin_of(entry)]++] = entry;
    }
  });
  return result;
}

}  // namespace lumigrad::meshes
