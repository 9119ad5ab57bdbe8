// Rows that share what one of them was.
#include <cstring>

#include "density/cpu_loops.h"
#include "density/math_share.h"

LG_BEGIN_ENGINE(density)
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
