// Half a warp, sixteen lanes, evaluates one row: each lane has one box of a node or one triangle of a leaf, and all
// other values are the same in all lanes. Loads are coalesced, the lanes of a row do not diverge, and few rows occupy a
// whole device.
#pragma once

#include "common/cuda/primitives.cuh"
#include "meshes/params.h"

namespace lumigrad::meshes {

static_assert(2 * kWide == kWarp);

// The whole warp, i.e. both rows, must call each function together, so that the compiler need not determine at run time
// which lanes take part. A row that has nothing to do takes part with values that do not matter.
struct RowLanes {
  int begin;  // The first lane of the row in the warp.
  int lane;   // Number in the row.

  static __device__ RowLanes of_thread() {
    const int place = lane_index();
    return {place & kWide, place % kWide};
  }
  // Whether `it` is true for either row of the warp.
  static __device__ bool either(bool it) { return __any_sync(kWholeWarp, it) != 0; }
  // Returns the smallest value of the row to every lane; NaN is ignored.
  __device__ float least(float value) const {
#pragma unroll
    for (int offset = kWide / 2; offset > 0; offset /= 2) {
      value = fminf(value, __shfl_xor_sync(kWholeWarp, value, offset));
    }
    return value;
  }
  __device__ int least(int value) const {
#pragma unroll
    for (int offset = kWide / 2; offset > 0; offset /= 2) {
      value = ::min(value, __shfl_xor_sync(kWholeWarp, value, offset));
    }
    return value;
  }
  __device__ float sum(float value) const {
#pragma unroll
    for (int offset = kWide / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
    return value;
  }
  // The row's lanes whose value is true, as bits.
  __device__ unsigned votes(bool it) const { return __ballot_sync(kWholeWarp, it) >> begin & 0xFFFFu; }
};

}  // namespace lumigrad::meshes
