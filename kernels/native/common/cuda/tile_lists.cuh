// Lists of the tiles that items overlap. The engine defines the overlap by a `Reach`:
//   reach(item) returns the tiles of an item, with
//     unsigned count() const               their number
//     unsigned runs() const                the number of runs of neighbouring tiles in a row that they form
//     TileRun run(unsigned number) const   a run, number < runs(); some may be empty
//   reach.view(item) returns its view.
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

// Stores the number of tiles of the calling lane's item, and adds the warp's total to the sum, if requested. The whole
// warp must call it; lanes without an item pass 0 tiles. The total fits 32 bits: an image has at most 2^24 tiles.
__device__ inline void count_tiles(const TileCounts& to, bool has_item, int64_t item, unsigned tiles) {
  if (has_item && to.of_items != nullptr) to.of_items[item] = tiles;
  if (to.pairs == nullptr) return;
  const unsigned total = warp_sum(tiles);
  if (lane_index() == 0 && total > 0) atomicAdd(to.pairs, static_cast<unsigned long long>(total));
}

// The rank in [0, ranks) of the item with pair `pair`: the last item whose pairs start at or before it. The whole warp
// must call it with the same arguments.
__device__ inline unsigned rank_of(const unsigned* starts, unsigned ranks, unsigned pair) {
  unsigned low = 0, count = ranks;  // The rank is in [low, low + count).
  while (count > 1) {
    const unsigned step = (count + kWarp - 1) / kWarp, at = static_cast<unsigned>(lane_index()) * step;
    const bool before = at < count && starts[low + at] <= pair;
    const unsigned last = static_cast<unsigned>(__popc(__ballot_sync(kWholeWarp, before)) - 1) * step;
    low += last;
    count = ::min(step, count - last);
  }
  return low;
}

// The sum of the values of the lanes up to the calling lane.
__device__ inline unsigned sum_up_to(unsigned value) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const unsigned other = __shfl_up_sync(kWholeWarp, value, offset);
    if (lane_index() >= offset) value += other;
  }
  return value;
}

// The first lane whose `end` exceeds `number`, or the last lane if there is none; `end` ascends with the lanes.
__device__ inline int lane_of(unsigned end, unsigned number) {
  int lane = 0;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    if (__shfl_sync(kWholeWarp, end, lane + step - 1) <= number) lane += step;
  }
  return lane;
}

// The range of pairs [begin, end) that a warp writes.
struct PairWindow {
  unsigned begin, end;
  unsigned *tiles, *entries;
};

// Writes the pairs of the lanes' runs, numbered consecutively from `first`: each lane has `count` pairs, with the tiles
// from `tile` on. Returns the number after the last pair. The whole warp must call it.
__device__ inline unsigned write_runs(const PairWindow& to, unsigned first, unsigned count, unsigned tile,
                                      unsigned entry) {
  const unsigned end = first + sum_up_to(count), next = __shfl_sync(kWholeWarp, end, kWarp - 1);
  const unsigned before = tile - (end - count);  // The tile of pair p is before + p.
  for (unsigned at = ::max(first, to.begin); at < ::min(next, to.end); at += kWarp) {
    const unsigned pair = at + static_cast<unsigned>(lane_index());
    const int lane = lane_of(end, pair);
    const unsigned its_tile = __shfl_sync(kWholeWarp, before, lane) + pair;
    const unsigned its_entry = __shfl_sync(kWholeWarp, entry, lane);
    if (pair < ::min(next, to.end)) {
      to.tiles[pair] = its_tile;
      to.entries[pair] = its_entry;
    }
  }
  return next;
}

// A warp lists kWarpPairs pairs, so that an item that covers the film costs no more than many small items. It processes
// 32 items at a time, and 32 of their runs of tiles at a time, one per lane.
inline constexpr unsigned kWarpPairs = 256, kBlockPairs = kListThreads / kWarp * kWarpPairs;

template <Entry kEntry, class Reach>
__global__ void __launch_bounds__(kListThreads)
    list_tiles_kernel(Reach reach, TileLists lists, const unsigned* starts, unsigned* tiles, unsigned* entries) {
  const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, begin = warp * kWarpPairs;
  unsigned pairs = lists.pairs;
  // No pairs are listed if there is no room for all of them.
  if (lists.counted != nullptr) pairs = *lists.counted <= pairs ? static_cast<unsigned>(*lists.counted) : 0;
  if (begin >= pairs) return;
  const PairWindow window{begin, ::min(begin + kWarpPairs, pairs), tiles, entries};
  const unsigned ranks = lists.view_ranks[lists.views];
  unsigned first_rank = rank_of(starts, ranks, begin), pair = starts[first_rank];
  for (; pair < window.end && first_rank < ranks; first_rank += kWarp) {
    const unsigned rank = first_rank + static_cast<unsigned>(lane_index());
    const bool wanted = rank < ranks && starts[rank] < window.end;
    const unsigned item = wanted ? lists.order[rank] : 0, runs = wanted ? reach(item).runs() : 0;
    const unsigned end = sum_up_to(runs), total = __shfl_sync(kWholeWarp, end, kWarp - 1);
    for (unsigned at = 0; at < total; at += kWarp) {
      const unsigned number = at + static_cast<unsigned>(lane_index());
      const int lane = lane_of(end, number);
      const unsigned its_item = __shfl_sync(kWholeWarp, item, lane);
      const unsigned its_first = __shfl_sync(kWholeWarp, end - runs, lane);
      TileRun run{};
      if (number < total) run = reach(its_item).run(number - its_first);
      const unsigned view = lists.views > 1 && number < total ? reach.view(its_item) : 0;
      const unsigned tile = (view * lists.tiles_y + run.row) * lists.tiles_x + run.column;
      const unsigned its_rank = first_rank + static_cast<unsigned>(lane);
      pair = write_runs(window, pair, run.count, tile, kEntry == Entry::rank ? its_rank : its_item);
    }
  }
}

// Lists the items of all tiles, after `sort_by_depth`. `counts` are the items' numbers of tiles. `pairs` is their sum,
// or, if `lists.counted` has the sum on the device, the number of pairs to allocate memory for.
template <Entry kEntry, class Reach>
void list_tiles(const Reach& reach, const DeviceBuffer<unsigned>& counts, std::size_t pairs, TileLists& lists,
                TileBuffers& buffers, cudaStream_t stream) {
  const std::size_t n = counts.size();
  DeviceBuffer<unsigned> starts(n, stream), tiles(pairs, stream), entries(pairs, stream);
  lists.pairs = static_cast<unsigned>(pairs);
  if (lists.counted != nullptr) check(cudaMemsetAsync(tiles.data(), 0xFF, tiles.bytes(), stream), "clearing tiles");
  exclusive_sum(counts.data(), buffers.order.data(), starts.data(), static_cast<int>(n), stream);
  launch(list_tiles_kernel<kEntry, Reach>, blocks_for(pairs, kBlockPairs), kListThreads, 0, stream, reach, lists,
         starts.data(), tiles.data(), entries.data());
  sort_by_tile(tiles, entries, lists, buffers, stream);
}

}  // namespace lumigrad
