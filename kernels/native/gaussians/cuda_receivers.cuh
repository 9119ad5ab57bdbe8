// Which Gaussians a view sends something to, and what it sends: rows of sums over its pixels.
#pragma once

#include "common/device_primitives.h"
#include "gaussians/cuda_stages.h"

namespace lumigrad::gaussians {

inline constexpr int kGaussianWarps = static_cast<int>(kGaussianThreads) / kWarp;

// One Gaussian of a view.
struct Receiver {
  const float* row;  // Its sums.
  int64_t item;
  bool receives;  // From pixels, or from upstream gradients of the projected means.

  __device__ Receiver(const CudaCall& call, const CudaRecords& records, const CudaRows& rows, bool extra, int view,
                      int number)
      : item(view * static_cast<int64_t>(call.scene.count) + number) {
    row = rows.rows + item * rows.width;
    const float* record = records.record(item);
    receives = extra ? !is_culled(record) : reaches_pixels(range_of(record)) && has_sums(rows.width);
  }
  __device__ bool has_sums(int width) const {
    bool any = false;
    for (int i = 0; i < width; ++i) any |= row[i] != 0.0f;
    return any;
  }
  __device__ float feature(int f) const { return row[gradient_row::kFeatures + f]; }
};

// Writes a sum at the first time, and adds to it later.
__device__ inline void put(float* to, float value, bool add) { *to = add ? *to + value : value; }

// Sums 32 values of each thread over the block, and writes them to `to` but for those below `from` and from `end` on.
// The threads of the block call it together, and again only after a barrier.
__device__ inline void put_block_sums(float (&values)[kWarp], int from, int end, double* to) {
  __shared__ SharedArray<float, kGaussianWarps * kWarp> partial;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  partial[warp * kWarp + lane] = warp_sums(values);
  __syncthreads();
  if (warp > 0 || lane < from || lane >= end) return;
  double sum = 0.0;
  for (int w = 0; w < kGaussianWarps; ++w) sum += static_cast<double>(partial[w * kWarp + lane]);
  to[lane] = sum;
}

}  // namespace lumigrad::gaussians
