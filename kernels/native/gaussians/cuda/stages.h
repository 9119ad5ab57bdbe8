// The stages of a call on the device, in the order in which they run; each queues its kernels and returns.
#pragma once

#include "gaussians/cuda/records.cuh"

namespace lumigrad::gaussians {

// Fills in records and whatever else of `outputs` is per Gaussian, and the keys that sort items by depth.
void cuda_project(const CudaCallData& data, const CudaRecords& records, const Outputs& outputs, unsigned* keys,
                  cudaStream_t stream);
// Fills in the colours of the records.
void cuda_colors(const CudaCall& call, const CudaRecords& records, cudaStream_t stream);
// Lists the items of each tile, in order.
void cuda_bin(const CudaCall& call, const CudaRecords& records, CudaPass& pass, PairRoom& pairs, cudaStream_t stream);
// Blends the images; `lasts` receives how much of its list each pixel went through, unless it is null.
void cuda_draw(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const Outputs& outputs,
               int* lasts, cudaStream_t stream);

// Sums over the pixels of each item, see math/record.h: passed to kernels by value.
struct CudaRows {
  int width;         // Floats of a row: gradient_row::kFeatures and the features.
  bool wants_abs;    // Whether kAbsX and kAbsY are summed.
  float* rows;       // [V, N, width], added to; or, where sums are deterministic,
  float* pair_rows;  // [pairs, width] written where a tile's pixels contribute.
  int32_t* touched;  // [S, N]
};

void cuda_blend_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                         const Upstream& upstream, const int* lasts, const CudaRows& rows, cudaStream_t stream);
// From pair_rows to rows, in the order of the lists.
void cuda_sum_pairs(const TileLists& lists, std::size_t items, const CudaRows& rows, cudaStream_t stream);
// dL/d background.
void cuda_background_backward(const CudaCall& call, const Upstream& upstream, float* background, cudaStream_t stream);

// What poses, lenses and projections get from each block of Gaussians; the block of kGaussianThreads threads of
// GaussianPlace. One after another: rotation (9), translation (3), fx, fy, cx, cy, projection (12), eye (3).
namespace block_sum {
enum Field { kRotation = 0, kTranslation = 9, kIntrinsics = 12, kProjection = 16, kEye = 28, kFields = 32 };
}

// From rows to gradients of the scene. Block sums [V, blocks, block_sum::kFields] are not wanted if null.
void cuda_project_backward(const CudaCallData& data, const CudaRecords& records, const Upstream& upstream,
                           const CudaRows& rows, const Gradients& gradients, double* block_sums, cudaStream_t stream);
// Adds what the direction of spherical harmonics sends to the means.
void cuda_colors_backward(const CudaCall& call, const CudaRecords& records, const CudaRows& rows,
                          const Gradients& gradients, double* block_sums, cudaStream_t stream);
// From block sums to the gradients of poses, intrinsics and projections.
void cuda_sum_blocks(const CudaCall& call, const double* block_sums, const Gradients& gradients, cudaStream_t stream);

}  // namespace lumigrad::gaussians
