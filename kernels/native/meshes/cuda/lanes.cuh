// Half a warp, sixteen lanes, evaluates one row: each lane has one box of a node or one triangle of a leaf, and all
// other values are the same in all lanes. Loads are coalesced, the lanes of a row do not diverge, and few rows occupy a
// whole device.
#pragma once

#include "common/cuda/primitives.cuh"
#include "meshes/params.h"

namespace lumigrad::meshes {

static_assert(2 * kWide == kWarp);

struct RowLanes {
  unsigned mask;  // The lanes of the group, as bits of the warp.
  int lane;       // Number in the group.

  static __device__ RowLanes of_thread() {
    const int place = lane_index();
    return {0xFFFFu << (place & kWide), place % kWide};
  }
  // Returns the smallest value of the group to every lane; NaN is ignored.
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
  // The first lane whose value is true; at least one must be.
  __device__ int first(bool it) const {
    const unsigned votes = __ballot_sync(mask, it);
    return (__ffs(static_cast<int>(votes)) - 1) % kWide;
  }
  __device__ int from(int value, int source) const { return __shfl_sync(mask, value, source, kWide); }
};

}  // namespace lumigrad::meshes
