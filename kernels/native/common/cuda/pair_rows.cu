// Sums over an item's pairs in a fixed order.
#include "common/cuda/pair_rows.h"

#include <bit>

#include "common/cuda/launch.h"
#include "common/cuda/sort.h"

namespace lumigrad {
namespace {

constexpr unsigned kThreads = 256;

// Runs a thread per float of a row; `by_item` lists the pairs grouped by item.
__global__ void pairs_kernel(const unsigned* starts, const unsigned* by_item, std::size_t floats, int width,
                             const float* pair_rows, float* rows) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= floats) return;
  const std::size_t item = i / width, column = i % width;
  float sum = 0.0f;
  for (unsigned p = starts[item]; p < starts[item + 1]; ++p) {
    sum += pair_rows[by_item[p] * static_cast<std::size_t>(width) + column];
  }
  rows[i] = sum;
}

}  // namespace

void sum_pair_rows(const unsigned* pair_items, std::size_t pairs, std::size_t items, int width, const float* pair_rows,
                   float* rows, cudaStream_t stream) {
  const std::size_t floats = items * static_cast<std::size_t>(width);
  DeviceBuffer<unsigned> sorted(pairs, stream), by_item(pairs, stream), starts(items + 1, stream);
  // Pairs are listed by tile; the sort by item is stable and keeps this order.
  sort_pairs(pair_items, sorted.data(), nullptr, by_item.data(), static_cast<int>(pairs), 0, std::bit_width(items),
             stream);
  find_starts(sorted, 0, static_cast<unsigned>(items + 1), starts.data(), stream);
  launch(pairs_kernel, blocks_for(floats, kThreads), kThreads, 0, stream, starts.data(), by_item.data(), floats, width,
         pair_rows, rows);
}

}  // namespace lumigrad
