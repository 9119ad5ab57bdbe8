// Sixteen lanes of a warp that evaluate one row: each has one box of a node or one triangle of a leaf, and all other
// values are uniform. Loads are coalesced, lanes of a row do not diverge, and few rows fill a device.
#pragma once

#include "common/cuda/primitives.cuh"
#include "meshes/params.h"

namespace lumigrad::meshes {

static_assert(2 * kWide == kWarp);

struct RowLanes {
  unsigned mask;  // In the warp.
  int lane;       // In the group.

  static __device__ RowLanes of_thread() {
    const int place = lane_index();
    return {0xFFFFu << (place & kWide), place % kWide};
  }
  // The least value, to every lane; of NaN and a number the number.
  __device__ float least(float value) const {
#pragma unroll
    for (int offset = kWide / 2; offset > 0; offset /= 2) {
      value = fminf(value, __shfl_xor_sync(mask, value, offset, kWide));
    }
    return value;
  }
  __device__ int least(int value) const {
#pragma unroll
    for (int offset = kWide / 2; offset > 0; offset /= 2) {
      value = ::min(value, __shfl_xor_sync(mask, value, offset, kWide));
    }
    return value;
  }
  __device__ float sum(float value) const {
#pragma unroll
    for (int offset = kWide / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(mask, value, offset, kWide);
    return value;
  }
  // The first lane for which it is true; one is.
  __device__ int first(bool it) const {
    const unsigned votes = __ballot_sync(mask, it);
    return (__ffs(static_cast<int>(votes)) - 1) % kWide;
  }
  __device__ int from(int value, int source) const { return __shfl_sync(mask, value, source, kWide); }
};

}  // namespace lumigrad::meshes
