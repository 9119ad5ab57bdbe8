// Places of a call's Gaussians on the device: each Gaussian that reaches pixels of a view has one, view by view in the
// order of their numbers. A first pass over all Gaussians assigns places, the second writes records.
#pragma once

#include "common/cuda/primitives.cuh"
#include "gaussians/cuda/call.h"

namespace lumigrad::gaussians {

inline constexpr int kGaussianWarps = static_cast<int>(kGaussianThreads) / kWarp;

inline std::size_t warps_of(const CudaCall& call) {
  return static_cast<std::size_t>(call.views) * call.blocks * kGaussianWarps;
}

// The Gaussian that a thread works on, and the view or scene that its block belongs to.
struct GaussianPlace {
  int outer;   // View or scene.
  int block;   // Block within the view or scene.
  int slice;   // The block's slice.
  int number;  // Number within the scene; -1 if there is none.
};

__device__ inline GaussianPlace gaussian_place(const CudaCall& call) {
  const auto blocks = static_cast<unsigned>(call.blocks);
  const auto outer = static_cast<int>(blockIdx.x / blocks), block = static_cast<int>(blockIdx.x % blocks);
  int low = 0, high = call.scene.slices - 1;
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (call.slice_blocks[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int within = (block - call.slice_blocks[low]) * static_cast<int>(kGaussianThreads);
  const int number = call.scene.slice_begins[low] + within + static_cast<int>(threadIdx.x);
  return {outer, block, low, number < call.scene.slice_begins[low + 1] ? number : -1};
}

// A Gaussian in a view.
struct Placed {
  bool drawn, seen;  // Whether it reaches pixels, and whether it was not culled.
  unsigned place;    // The place if drawn, else the one after all places.
};

// Passed to kernels by value.
struct CudaPlaces {
  unsigned* before;  // [V, warps] places before a warp's first place; in the first pass, the warp's number of places
  uint2* lanes;      // [V, warps] a warp's lanes with drawn Gaussians, and with Gaussians not culled, as bits
  unsigned* items;   // [count] the Gaussian of each place: view * N + number
  unsigned count;    // The number of allocated places.

  __device__ static int64_t warp_of(const CudaCall& call, int view, const GaussianPlace& g) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    return (static_cast<int64_t>(view) * call.blocks + g.block) * kGaussianWarps + warp;
  }
  // The place of the calling thread's Gaussian in a view.
  __device__ Placed find(const CudaCall& call, int view, const GaussianPlace& g) const {
    const int64_t warp = warp_of(call, view, g);
    const uint2 bits = lanes[warp];
    const int lane = lane_index();
    const bool drawn = (bits.x >> lane & 1u) != 0;
    return {drawn, (bits.y >> lane & 1u) != 0, drawn ? before[warp] + __popc(bits.x & lanes_below()) : count};
  }
  // Records whether the calling thread's Gaussian is drawn and not culled, and adds the number of drawn ones to `sum`.
  // The whole warp must call it.
  __device__ void note(const CudaCall& call, const GaussianPlace& g, bool drawn, bool seen,
                       unsigned long long* sum) const {
    const uint2 bits = make_uint2(__ballot_sync(kWholeWarp, drawn), __ballot_sync(kWholeWarp, seen));
    if (lane_index() > 0) return;
    const int64_t warp = warp_of(call, g.outer, g);
    const auto found = static_cast<unsigned>(__popc(bits.x));
    lanes[warp] = bits;
    before[warp] = found;
    if (found > 0) atomicAdd(sum, static_cast<unsigned long long>(found));
  }
};

}  // namespace lumigrad::gaussians
