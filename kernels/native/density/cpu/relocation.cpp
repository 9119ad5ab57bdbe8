// Relocation of rows: samples rows in proportion to their opacities, and adapts the opacities and scales of copies.
#include <cstring>

#include "common/pool.h"
#include "density/cpu/loops.h"
#include "density/math/sample.h"
#include "density/math/share.h"

LG_BEGIN_ENGINE(density)

void weigh(const float* opacities, int32_t count, float minimum, const Weights& to) {
  Array<uint64_t> sums(static_cast<std::size_t>(chunks_of(count)));
  Array<int32_t> without(sums.size());
  each_chunk(count, [&](int chunk, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to.sums[i] = weight_of(opacities[i], minimum);
    uint64_t sum = 0;
    int32_t none = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t weight = to.sums[i];
      to.sums[i] = sum;
      sum += weight;
      none += weight == 0;
    }
    sums[chunk] = sum;
    without[chunk] = none;
  });
  uint64_t total = 0;
  int32_t all = 0;
  for (std::size_t chunk = 0; chunk < sums.size(); ++chunk) {
    const uint64_t sum = sums[chunk];
    const int32_t none = without[chunk];
    sums[chunk] = total;
    without[chunk] = all;
    total += sum;
    all += none;
  }
  to.sums[count] = total;
  to.excluded_count[0] = all;
  each_chunk(count, [&](int chunk, int64_t begin, int64_t end) {
    int32_t* excluded = to.excluded + without[chunk];
    for (int64_t i = begin; i < end; ++i) {
      if (!(opacities[i] > minimum)) *excluded++ = static_cast<int32_t>(i);
      to.sums[i] += sums[chunk];
    }
  });
}

void sample_rows(const Sample& sample, const Draw& draw) {
  each_chunk(sample.draws, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sample.rows[i] = row_of_draw(sample.sums, sample.count, draw, static_cast<uint32_t>(i));
    }
  });
  for (int64_t i = 0; i < sample.draws; ++i) sample.shares[sample.rows[i]] += 1;
}

namespace {

void clear(const Column& column, int64_t row) {
  std::memset(column.to + column.width * row, 0, sizeof(float) * static_cast<std::size_t>(column.width));
}

}  // namespace

void share_rows(const Shared& shared, const Column* columns, int count) {
  each_chunk(shared.count, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (shared.shares[i] == 0) continue;
      share_row(shared, i);
      for (int c = 0; c < count; ++c) clear(columns[c], i);
    }
  });
}

void move_rows(const Moves& moves, const Column* columns, int count) {
  each_chunk(moves.count, [&](int, int64_t begin, int64_t end) {
    for (int c = 0; c < count; ++c) {
      const Column& column = columns[c];
      const int64_t width = column.width;
      for (int64_t i = begin; i < end; ++i) {
        if (column.fresh) {
          clear(column, moves.targets[i]);
        } else {
          std::memcpy(column.to + width * moves.targets[i], column.from + width * moves.sources[i],
                      sizeof(float) * static_cast<std::size_t>(width));
        }
      }
    }
  });
}

LG_END
