// Sums of the backward pass: a row of floats per sphere, and doubles per view.
#pragma once

#include "common/cuda/primitives.cuh"
#include "spheres/cuda/prepare.cuh"
#include "spheres/math/camera.h"

namespace lumigrad::spheres {

// A row: dL/d centre (3), radius, opacity (exact: an ExactRow), then the colours, of which the first 8 columns hold 3.
inline constexpr int kCudaRow = 8;
inline constexpr int kRowColor = 5;

inline int cuda_row_width(int channels) { return (kRowColor + channels + kCudaRow - 1) / kCudaRow * kCudaRow; }

// The sums of a view that follow those of the camera; the last ones are those of the background's colours.
enum ViewSum {
  kContributors = kCameraSums,  // Compat: the divisor of the camera's sums.
  kBackgroundExponent,          // Exact: sum of dL/de0 (e0 - M)
  kBackgroundMaximum,           // Exact: sum of dL/de0 M
  kPairExponent,                // Exact: sum of dL/de (e - M)
  kBackgroundColor,
};

struct CudaRows {
  int width;
  float* rows;   // [N, width]
  int* touched;  // [N]
  double* sums;  // [kBackgroundColor + K]
};

// Adds 8 values of each lane of the warp, all for one sphere.
__device__ inline void add_row(float* row, float (&values)[kCudaRow]) {
  const float total = warp_sums(values);
  constexpr int kShare = kWarp / kCudaRow;
  if (lane_index() % kShare == 0) atomicAdd(row + lane_index() / kShare, total);
}

// Adds 8 values of each lane to the row of the lane's sphere, from `column` on; id -1: no sphere. The whole warp must
// call it. Lanes with the same sphere are summed first if there are enough of them.
__device__ inline void add_rows(const CudaRows& to, int id, int column, const float (&values)[kCudaRow]) {
  constexpr int kWorthSumming = 4;
  unsigned rest = __ballot_sync(kWholeWarp, id >= 0);
  while (rest != 0) {
    const int leader = __shfl_sync(kWholeWarp, id, __ffs(static_cast<int>(rest)) - 1);
    const unsigned group = __ballot_sync(kWholeWarp, id == leader);
    float* row = to.rows + static_cast<int64_t>(leader) * to.width + column;
    if (__popc(group) >= kWorthSumming) {
      float own[kCudaRow];
#pragma unroll
      for (int i = 0; i < kCudaRow; ++i) own[i] = id == leader ? values[i] : 0.0f;
      add_row(row, own);
    } else if (id == leader) {
#pragma unroll
      for (int i = 0; i < kCudaRow; ++i) atomicAdd(row + i, values[i]);
    }
    rest &= ~group;
  }
}

// Adds V values of each thread of the block to `to`.
template <int V>
__device__ inline void add_block(float (&values)[V], double* to) {
  __shared__ SharedArray<float, kTileWarps * V> partial;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  const float total = warp_sums(values);
  __syncthreads();
  if (lane % (kWarp / V) == 0) partial[warp * V + lane / (kWarp / V)] = total;
  __syncthreads();
  if (threadIdx.x < V) {
    double sum = 0.0;
    for (int w = 0; w < kTileWarps; ++w) sum += static_cast<double>(partial[w * V + static_cast<int>(threadIdx.x)]);
    if (sum != 0.0) atomicAdd(to + threadIdx.x, sum);
  }
}

// Backward passes of the two semantics: they fill rows, `touched` and sums, which are cleared beforehand.
void cuda_compat_pairs(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                       const CudaPrepared& prepared, const CudaRows& to, bool wants_camera, cudaStream_t stream);
void cuda_exact_pairs(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                      const CudaPrepared& prepared, const CudaRows& to, cudaStream_t stream);
// Computes gradients from rows and sums.
void cuda_finish(const Camera& camera, const Settings& settings, const Scene& scene, const CudaPrepared& prepared,
                 const CudaRows& rows, const Gradients& gradients, cudaStream_t stream);

// Compat, spec 7.2: the factor of a sphere's camera terms.
__device__ inline float camera_weight(float area, int touched) {
  return touched > 0 ? (area > 0.0f ? area : -area) * 1e-3f / static_cast<float>(touched) : 0.0f;
}

}  // namespace lumigrad::spheres
