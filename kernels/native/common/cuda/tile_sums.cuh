// Sums of a tile's pixels for its items: warps sum with shuffles, and the tile in shared memory, so that it adds once
// to an item's row. TileSums adds in the order of the warps, which wait for each other after every 32 items. BatchSums
// adds in any order, and they wait once per batch; it takes as much memory.
#pragma once

#include "common/cuda/tile_batch.cuh"

namespace lumigrad {

// Each warp's sums, kRow floats for each of the 32 items that the tile processes at a time.
template <int kRow>
struct TileSums {
  static constexpr int kItems = kWarp;
  static constexpr bool kOrdered = true;

  SharedArray<float, kTileWarps * kWarp * kRow> sums;
  SharedArray<unsigned, kTileWarps> filled;  // The items that have sums, as bits.

  // Sums values of each lane, which are used up, for columns from `column` on. The whole warp must call it.
  template <int kCount>
  __device__ void put(int slot, int column, float (&values)[kCount]) {
    const float total = warp_sums(values);
    constexpr int kShare = kWarp / kCount;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
    if (lane % kShare == 0) sums[(warp * kWarp + slot) * kRow + column + lane / kShare] = total;
  }

  // The same for item `item` of the batch: `first` for the columns from 0 on, `then` for those that follow.
  template <int kFirst, int kThen>
  __device__ void put(int item, float (&first)[kFirst], float (&then)[kThen]) {
    put(item % kWarp, 0, first);
    put(item % kWarp, kFirst, then);
  }

  // Marks those of the 32 items from `begin` on that the warp has put.
  __device__ void mark(int, unsigned items) {
    if (lane_index() == 0) filled[static_cast<int>(threadIdx.x) / kWarp] = items;
  }

  // Whether a warp has a sum.
  __device__ bool any(int slot) {
    unsigned all = 0;
    for (int warp = 0; warp < kTileWarps; ++warp) all |= filled[warp];
    return (all >> slot & 1u) != 0;
  }

  // The tile's sum, in the order of the warps.
  __device__ float total(int slot, int column) {
    float sum = 0.0f;
    for (int warp = 0; warp < kTileWarps; ++warp) {
      if ((filled[warp] >> slot & 1u) != 0) sum += sums[(warp * kWarp + slot) * kRow + column];
    }
    return sum;
  }
};

// The tile's sums, kRow floats for each item of a batch, to which its warps add.
template <int kRow>
struct BatchSums {
  static constexpr int kItems = kTilePixels;
  static constexpr bool kOrdered = false;

  SharedArray<float, kItems * kRow> sums;
  SharedArray<unsigned, kItems / kWarp> filled;  // The items that have sums, as bits.

  // The threads of the block call it together, before a barrier.
  __device__ void clear() {
    for (int k = static_cast<int>(threadIdx.x); k < kItems * kRow; k += kTilePixels) sums[k] = 0.0f;
    if (threadIdx.x < kItems / kWarp) filled[static_cast<int>(threadIdx.x)] = 0;
  }

  // Sums the values of each lane, which are used up: `first` for the columns from 0 on, `then` for those that follow.
  // The whole warp must call it.
  template <int kFirst, int kThen>
  __device__ void put(int item, float (&first)[kFirst], float (&then)[kThen]) {
    constexpr int kFirstShare = kWarp / kFirst, kThenShare = kWarp / kThen;
    static_assert(kFirstShare > 1 && kThenShare > 1);
    const float of_first = warp_sums(first), of_then = warp_sums(then);
    // Every lane of a share has its total.
    const int lane = lane_index();
    const bool is_first = lane % kFirstShare == 0;
    const int column = is_first ? lane / kFirstShare : kFirst + lane / kThenShare;
    if (is_first || lane % kThenShare == 1) atomicAdd(&sums[item * kRow + column], is_first ? of_first : of_then);
  }

  // Marks those of the 32 items from `begin` on that the warp has put.
  __device__ void mark(int begin, unsigned items) {
    if (lane_index() == 0 && items != 0) atomicOr(&filled[begin / kWarp], items);
  }

  // The same as in TileSums, of any item of the batch.
  __device__ bool any(int item) { return (filled[item / kWarp] >> item % kWarp & 1u) != 0; }

  __device__ float total(int item, int column) { return sums[item * kRow + column]; }
};

}  // namespace lumigrad
