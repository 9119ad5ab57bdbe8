// Sums over a tile's pixels for its items: warps sum with shuffles, and the tile sums its warps in shared memory, in
// order, so that it adds to an item's row only once. The warps synchronise after every 32 items.
#pragma once

#include "common/cuda/tile_batch.cuh"

namespace lumigrad {

// Each warp's sums, kRow floats for each of the 32 items that the tile processes at a time.
template <int kRow>
struct TileSums {
  SharedArray<float, kTileWarps * kWarp * kRow> sums;
  SharedArray<unsigned, kTileWarps> filled;  // The items that have sums, as bits.

  // Sums the lanes' values, which are overwritten, for columns from `column` on. The whole warp must call it.
  template <int kCount>
  __device__ void put(int slot, int column, float (&values)[kCount]) {
    const float total = warp_sums(values);
    constexpr int kShare = kWarp / kCount;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
    if (lane % kShare == 0) sums[(warp * kWarp + slot) * kRow + column + lane / kShare] = total;
  }

  // Sums for item `item` of the batch: `first` for the columns from 0 on, `then` for the columns after them.
  template <int kFirst, int kThen>
  __device__ void put(int item, float (&first)[kFirst], float (&then)[kThen]) {
    put(item % kWarp, 0, first);
    put(item % kWarp, kFirst, then);
  }

  // Marks which of the 32 items from `begin` on the warp has put.
  __device__ void mark(int, unsigned items) {
    if (lane_index() == 0) filled[static_cast<int>(threadIdx.x) / kWarp] = items;
  }

  // Whether any warp has a sum for the item.
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

}  // namespace lumigrad
