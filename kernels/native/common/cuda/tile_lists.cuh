// Lists of the tiles that items overlap. The engine defines the overlap by a `Reach`:
//   reach(item) returns the tiles of an item, with
//     unsigned count() const            their number
//     uint2 tile(unsigned place) const  column and row of one of them, place < count()
#pragma once

#include <algorithm>

#include "common/cuda/launch.h"
#include "common/cuda/primitives.cuh"
#include "common/cuda/sort.h"
#include "common/cuda/tiles.h"

namespace lumigrad {

// The entries of the lists: an item's number, or its position in the order of depth.
enum class Entry { item, rank };

inline constexpr unsigned kListThreads = 256;

// The number of tiles that each item reaches, and the total, which has 64 bits.
template <class Reach>
__global__ void count_tiles_kernel(Reach reach, const unsigned* keys, unsigned items, unsigned* counts,
                                   unsigned long long* pairs) {
  __shared__ SharedArray<unsigned long long, kListThreads / kWarp> partial;
  const unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned count = item < items && keys[item] != kBehindAll ? reach(item).count() : 0;
  if (item < items) counts[item] = count;
  const auto of_warp = warp_sum(static_cast<unsigned long long>(count));
  if (lane_index() == 0) partial[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long total = 0;
    for (int w = 0; w < static_cast<int>(kListThreads) / kWarp; ++w) total += partial[w];
    if (total > 0) atomicAdd(pairs, total);
  }
}

// The last rank in [low, high] whose pairs start at or before `pair`.
__device__ inline unsigned rank_of(const unsigned* starts, unsigned pair, unsigned low, unsigned high) {
  while (low < high) {
    const unsigned middle = low + (high - low + 1) / 2;
    if (starts[middle] <= pair) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// A thread per pair, so that an item that covers the film costs no more than many small ones: it finds its item between
// those of the block's first and last pair.
template <Entry kEntry, class Reach>
__global__ void list_tiles_kernel(Reach reach, TileLists lists, unsigned items_per_view, const unsigned* starts,
                                  unsigned* tiles, unsigned* entries) {
  __shared__ SharedArray<unsigned, 2> ends;
  const unsigned first = blockIdx.x * blockDim.x, pair = first + threadIdx.x;
  if (threadIdx.x < 2) {
    const unsigned edge = threadIdx.x == 0 ? first : ::min(first + blockDim.x, lists.pairs) - 1;
    ends[threadIdx.x] = rank_of(starts, edge, 0, lists.view_ranks[lists.views] - 1);
  }
  __syncthreads();
  if (pair >= lists.pairs) return;
  const unsigned rank = rank_of(starts, pair, ends[0], ends[1]), item = lists.order[rank];
  const uint2 at = reach(item).tile(pair - starts[rank]);
  tiles[pair] = (item / items_per_view * lists.tiles_y + at.y) * lists.tiles_x + at.x;
  entries[pair] = kEntry == Entry::rank ? rank : item;
}

// Counts the pairs of items with these keys (see `sort_by_depth`), and has the total copied to the host. Returns the
// counts, by item, for `list_tiles`.
template <class Reach>
DeviceBuffer<unsigned> count_tiles(const Reach& reach, const DeviceBuffer<unsigned>& keys, PairCount& total,
                                   cudaStream_t stream) {
  const std::size_t n = keys.size();
  DeviceBuffer<unsigned> counts(n, stream);
  const DeviceBuffer<unsigned long long> pairs(1, stream);
  check(cudaMemsetAsync(pairs.data(), 0, sizeof(unsigned long long), stream), "clearing a count");
  launch(count_tiles_kernel<Reach>, blocks_for(n, kListThreads), kListThreads, 0, stream, reach, keys.data(),
         static_cast<unsigned>(n), counts.data(), pairs.data());
  total.copy(pairs.data(), stream);
  return counts;
}

// Lists the items of all tiles, after `sort_by_depth`. `pairs` is their number, as `count_tiles` has counted them.
template <Entry kEntry, class Reach>
void list_tiles(const Reach& reach, const DeviceBuffer<unsigned>& counts, std::size_t pairs, TileLists& lists,
                TileBuffers& buffers, cudaStream_t stream) {
  const std::size_t n = counts.size();
  DeviceBuffer<unsigned> starts(n, stream), tiles(pairs, stream), entries(pairs, stream);
  lists.pairs = static_cast<unsigned>(pairs);
  gather(counts, buffers.order, starts, stream);
  exclusive_sum(starts.data(), starts.data(), static_cast<int>(n), stream);
  launch(list_tiles_kernel<kEntry, Reach>, blocks_for(pairs, kListThreads), kListThreads, 0, stream, reach, lists,
         static_cast<unsigned>(n / lists.views), starts.data(), tiles.data(), entries.data());
  sort_by_tile(tiles, entries, lists, buffers, stream);
}

}  // namespace lumigrad
