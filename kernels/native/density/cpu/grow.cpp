// Statistics of rows, and the decision to keep, clone, split or prune each.
#include "density/math/grow.h"
#include "density/cpu/loops.h"

LG_BEGIN_ENGINE(density)
namespace {

template <int kAxes>
void accumulate_axes(const Observed& observed, const Statistics& statistics) {
  each_chunk(observed.count, [&](int, int64_t begin, int64_t end) {
    // Local copies, which the stores in the loop cannot alias, so that the loop is vectorised.
    const Observed o = observed;
    const Statistics to = statistics;
    for (int view = 0; view < o.views; ++view) {
      for (int64_t i = begin; i < end; ++i) observe<kAxes>(o, to, view, i);
    }
  });
}

// Decides the fates of a chunk, and counts its rows in each of the lists.
template <int kAxes>
void classify_chunk(const Candidates rows, const Limits limits, int64_t begin, int64_t end, Fate* fates,
                    int32_t (&counts)[kGroups]) {
  for (int64_t i = begin; i < end; ++i) fates[i] = fate_of<kAxes>(limits, rows, i);
  for (int64_t i = begin; i < end; ++i) {
    counts[0] += fates[i] == kKept || fates[i] == kCloned;
    counts[1] += fates[i] == kCloned;
    counts[2] += fates[i] == kSplit;
  }
}

}  // namespace

void accumulate(const Observed& observed, const Statistics& to) {
  observed.axes == 2 ? accumulate_axes<2>(observed, to) : accumulate_axes<3>(observed, to);
}

void classify(const Candidates& rows, const Limits& limits, Fate* fates, int32_t* starts) {
  const int64_t chunks = chunks_of(rows.count);
  each_chunk(rows.count, [&](int chunk, int64_t begin, int64_t end) {
    int32_t counts[kGroups] = {};
    rows.axes == 3 ? classify_chunk<3>(rows, limits, begin, end, fates, counts)
                   : classify_chunk<1>(rows, limits, begin, end, fates, counts);
    for (int g = 0; g < kGroups; ++g) starts[g * chunks + chunk] = counts[g];
  });
  int32_t sum = 0;
  for (int64_t i = 0; i < kGroups * chunks; ++i) {
    const int32_t here = starts[i];
    starts[i] = sum;
    sum += here;
  }
  starts[kGroups * chunks] = sum;
}

void list_rows(const Fate* fates, const int32_t* starts, int32_t count, int32_t* sources) {
  const int64_t chunks = chunks_of(count);
  const int32_t splits = starts[kGroups * chunks] - starts[2 * chunks];
  each_chunk(count, [&](int chunk, int64_t begin, int64_t end) {
    int32_t *kept = sources + starts[chunk], *cloned = sources + starts[chunks + chunk];
    int32_t* split = sources + starts[2 * chunks + chunk];
    for (int64_t i = begin; i < end; ++i) {
      const int32_t row = static_cast<int32_t>(i);
      const Fate fate = fates[i];
      if (fate == kKept || fate == kCloned) *kept++ = row;
      if (fate == kCloned) *cloned++ = row;
      if (fate != kSplit) continue;
      split[splits] = row;
      *split++ = row;
    }
  });
}

LG_END
