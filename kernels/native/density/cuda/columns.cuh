// Columns of a launch, passed as kernel arguments, one per index of the grid's second axis.
#pragma once

#include <algorithm>

#include "common/cuda/launch.h"
#include "density/params.h"

namespace lumigrad::density {

inline constexpr int kColumns = 32;

struct Columns {
  Column columns[kColumns];
};

inline constexpr unsigned kColumnThreads = 256;
// Rows per block, few enough for a 32-bit index of their numbers.
inline constexpr int kColumnRows = 256;

// Calls body(row, index) for number `index` of each of the block's rows, of `count` rows in total, with a thread per
// number, so that memory is read and written in rows.
template <class Body>
__device__ inline void each_number(const Column& column, int64_t count, const Body& body) {
  const int64_t first = int64_t{blockIdx.x} * kColumnRows, left = count - first;
  const auto width = static_cast<unsigned>(column.width);
  const unsigned end = width * static_cast<unsigned>(left < kColumnRows ? left : kColumnRows);
  for (unsigned i = threadIdx.x; i < end; i += kColumnThreads) body(first + i / width, i % width);
}

// Queues kernel(columns, arguments...) for `rows` rows of all columns, which are in host memory.
template <class... Parameters, class... Arguments>
void launch_columns(void (*kernel)(Columns, Parameters...), const Column* columns, int count, int64_t rows,
                    cudaStream_t stream, const Arguments&... arguments) {
  for (int done = 0; done < count; done += kColumns) {
    const int many = std::min(count - done, kColumns);
    Columns some;
    std::copy_n(columns + done, many, some.columns);
    const dim3 grid(blocks_for(static_cast<std::size_t>(rows), kColumnRows), static_cast<unsigned>(many));
    launch(kernel, grid, kColumnThreads, 0, stream, some, arguments...);
  }
}

}  // namespace lumigrad::density
