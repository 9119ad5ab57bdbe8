// Stable parallel radix sort of (key << 32 | value) words by their keys.
#pragma once

#include <cstdint>

#include "common/math/number.h"
#include "common/threads.h"

LG_BEGIN

inline constexpr int kRadixBits = 11;
inline constexpr int kRadix = 1 << kRadixBits;

// Sorts the words in `parts` segments of `a`, segment p being [begin[p], begin[p] + length[p]), into one run; returns
// the array (a or b) that holds it, from index 0. `histogram` has room for parts * kRadix counts.
inline uint64_t* radix_sort(uint64_t* a, uint64_t* b, const int64_t* begin, const int64_t* length, int parts,
                            uint32_t* histogram) {
  int64_t total = 0;
  for (int p = 0; p < parts; ++p) total += length[p];
  bool segmented = true;
  for (int shift = 32; shift < 64; shift += kRadixBits) {
    const auto from = [&](int p) { return segmented ? begin[p] : total * p / parts; };
    const auto to = [&](int p) { return segmented ? begin[p] + length[p] : total * (p + 1) / parts; };
    for_parts(parts, [&](int p) {
      uint32_t* counts = histogram + static_cast<int64_t>(p) * kRadix;
      for (int d = 0; d < kRadix; ++d) counts[d] = 0;
      for (int64_t i = from(p), end = to(p); i < end; ++i) ++counts[(a[i] >> shift) & (kRadix - 1)];
    });
    uint32_t sum = 0;
    bool trivial = false;
    for (int d = 0; d < kRadix; ++d) {
      const uint32_t start = sum;
      for (int p = 0; p < parts; ++p) {
        uint32_t& count = histogram[static_cast<int64_t>(p) * kRadix + d];
        const uint32_t here = count;
        count = sum;
        sum += here;
      }
      trivial |= total > 0 && sum - start == total;
    }
    // If all keys share this digit, the pass is skipped, unless the segments still have to be joined.
    if (trivial && !segmented) continue;
    for_parts(parts, [&](int p) {
      uint32_t* next = histogram + static_cast<int64_t>(p) * kRadix;
      for (int64_t i = from(p), end = to(p); i < end; ++i) b[next[(a[i] >> shift) & (kRadix - 1)]++] = a[i];
    });
    segmented = false;
    uint64_t* swap = a;
    a = b;
    b = swap;
  }
  return a;
}

LG_END
