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

// The number of tiles that each item reaches, by rank, and the total. The total has 64 bits. The 32-bit sums may
// overflow, but only if the total exceeds any capacity; they are not used then.
template <class Reach>
__global__ void count_tiles_kernel(Reach reach, TileLists lists, unsigned items, unsigned* counts,
                                   unsigned long long* pairs) {
  __shared__ SharedArray<unsigned long long, kListThreads / kWarp> partial;
  const unsigned rank = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned count = 0;
  if (rank < lists.view_ranks[lists.views]) count = reach(lists.order[rank]).count();
  if (rank < items) counts[rank] = count;
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
  const unsigned long long pairs = *lists.pairs;
  if (pairs > lists.capacity) return;
  const unsigned first = blockIdx.x * blockDim.x, pair = first + threadIdx.x;
  if (threadIdx.x < 2 && first < pairs) {
    const auto last = static_cast<unsigned>(pairs - 1);
    const unsigned edge = threadIdx.x == 0 ? first : ::min(first + blockDim.x - 1, last);
    ends[threadIdx.x] = rank_of(starts, edge, 0, lists.view_ranks[lists.views] - 1);
  }
  __syncthreads();
  if (pair >= lists.capacity) return;
  if (pair >= pairs) {
    tiles[pair] = kBehindAll;
    entries[pair] = 0;
    return;
  }
  const unsigned rank = rank_of(starts, pair, ends[0], ends[1]), item = lists.order[rank];
  const uint2 at = reach(item).tile(pair - starts[rank]);
  tiles[pair] = (item / items_per_view * lists.tiles_y + at.y) * lists.tiles_x + at.x;
  entries[pair] = kEntry == Entry::rank ? rank : item;
}

// Counts the pairs of the items that `sort_by_depth` has sorted. Returns the counts, by rank, for `list_tiles`.
template <class Reach>
DeviceBuffer<unsigned> count_tiles(const Reach& reach, TileLists& lists, TileBuffers& buffers, PairCount& pair_count,
                                   cudaStream_t stream) {
  const std::size_t n = buffers.order.size();
  DeviceBuffer<unsigned> counts(n, stream);
  buffers.pairs = DeviceBuffer<unsigned long long>(1, stream);
  unsigned long long* pairs = buffers.pairs.data();
  lists.pairs = pairs;
  check(cudaMemsetAsync(pairs, 0, sizeof(*pairs), stream), "clearing a count");
  launch(count_tiles_kernel<Reach>, blocks_for(n, kListThreads), kListThreads, 0, stream, reach, lists,
         static_cast<unsigned>(n), counts.data(), pairs);
  check(cudaMemcpyAsync(pair_count.place(), pairs, sizeof(*pairs), cudaMemcpyDeviceToHost, stream), "copying a count");
  return counts;
}

// Lists the tiles' items if there is `room` for them.
template <Entry kEntry, class Reach>
void list_tiles(const Reach& reach, DeviceBuffer<unsigned> counts, std::size_t room, TileLists& lists,
                TileBuffers& buffers, cudaStream_t stream) {
  if (room == 0) return;
  DeviceBuffer<unsigned> tiles(room, stream), entries(room, stream);
  lists.capacity = static_cast<unsigned>(room);
  exclusive_sum(counts.data(), counts.data(), static_cast<int>(counts.size()), stream);
  launch(list_tiles_kernel<kEntry, Reach>, blocks_for(room, kListThreads), kListThreads, 0, stream, reach, lists,
         static_cast<unsigned>(counts.size() / lists.views), counts.data(), tiles.data(), entries.data());
  sort_by_tile(tiles, entries, lists, buffers, stream);
}

}  // namespace lumigrad
