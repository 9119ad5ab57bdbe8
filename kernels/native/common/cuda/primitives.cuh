// Primitives of a thread block: shared arrays, and sums over a warp.
#pragma once

#include <cuda_runtime.h>

#ifdef LUMIGRAD_EMULATION
#include "emulation/shared_index.h"
#endif

namespace lumigrad {

inline constexpr int kWarp = 32;
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

// An array for __shared__ memory. In the emulation, an index out of range is an error, and the array holds NaN or -1 at
// the start of a block, not the values of the last block.
template <class T, int N>
struct SharedArray {
#ifdef LUMIGRAD_EMULATION
  T& operator[](emulation::SharedIndex index) {
    index.check(N, sizeof(values), values, generation);
    return values[index.value];
  }
  unsigned long long generation;
#else
  __device__ T& operator[](int index) { return values[index]; }
#endif
  T values[N];
};

// The shared memory whose size is set by the launch.
template <class T>
__device__ inline T* dynamic_shared() {
#ifdef LUMIGRAD_EMULATION
  return reinterpret_cast<T*>(emulation::dynamic_shared());
#else
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
#endif
}

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }

// Lanes below the calling one, as bits.
__device__ inline unsigned lanes_below() { return (1u << lane_index()) - 1; }

// A step of warp_sums: each lane keeps half of its 2 N values and sends the other half to the lane kOffset away; if one
// value is left, both lanes keep it.
template <int N, int kOffset, int V>
__device__ inline void warp_halves(float (&values)[V]) {
  if constexpr (N > 0) {
    const bool upper = (lane_index() & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float low = values[i], high = values[i + N];
      const float given = upper ? low : high;
      const float kept = upper ? high : low;
      values[i] = kept + __shfl_xor_sync(kWholeWarp, given, kOffset);
    }
    warp_halves<N / 2, kOffset / 2>(values);
  } else if constexpr (kOffset > 0) {
    values[0] += __shfl_xor_sync(kWholeWarp, values[0], kOffset);
    warp_halves<0, kOffset / 2>(values);
  }
}

// Sums each of V values over the warp, V a power of two up to 32; overwrites `values`. The total of value i is returned
// to the lanes from i * 32 / V on, so that one atomic instruction can add all of them. Takes V + 4 shuffles at most
// instead of 5 V.
template <int V>
__device__ inline float warp_sums(float (&values)[V]) {
  static_assert(V > 0 && V <= kWarp && (V & (V - 1)) == 0, "a power of two");
  warp_halves<V / 2, kWarp / 2>(values);
  return values[0];
}

// The total over the warp, returned to every lane.
template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
  return value;
}

// The total over the block of kThreads threads, summed in a fixed order, for its first thread. All threads call it.
template <int kThreads>
__device__ inline double block_total(double value) {
  __shared__ SharedArray<double, kThreads / kWarp> partial;
  const double of_warp = warp_sum(value);
  __syncthreads();
  if (lane_index() == 0) partial[static_cast<int>(threadIdx.x) / kWarp] = of_warp;
  __syncthreads();
  double total = 0.0;
  for (int w = 0; threadIdx.x == 0 && w < kThreads / kWarp; ++w) total += partial[w];
  return total;
}

}  // namespace lumigrad
