// Sums of a tile's pixels for its items: warps sum with shuffles, and the tile in shared memory, so that it adds once
// to an item's row.
#pragma once

#include "common/cuda/tile_batch.cuh"

namespace lumigrad {

// Each warp's sums, kRow floats for each of the 32 items that the tile processes at a time.
template <int kRow>
struct TileSums {
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

  // The tile's sum, in the order of the warps; false if no warp has one.
  __device__ bool total(int slot, int column, float& sum) {
    bool any = false;
    sum = 0.0f;
    for (int warp = 0; warp < kTileWarps; ++warp) {
      if ((filled[warp] >> slot & 1u) == 0) continue;
      any = true;
      sum += sums[(warp * kWarp + slot) * kRow + column];
    }
    return any;
  }
};

}  // namespace lumigrad
