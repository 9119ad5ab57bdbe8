// The stages of a call with surfels that differ from those of ellipses; each queues its kernels and returns.
#pragma once

#include "gaussians/cuda/stages.h"
#include "gaussians/math/surfel.h"

namespace lumigrad::gaussians {

// The first quarters of an ellipse's record, without its features.
inline constexpr int kEllipseQuarters = record::kFeatures / 4;

// Position of ProjectedSurfel::tilt in a record, in place of features.
inline constexpr int kTilt = surfel_record::kFeatures;
// The field of a row for the depth's gradient, besides its gradient as a feature.
inline constexpr int kMoreDepth = 14;

// Projects like cuda_project. In the second pass, `ellipses` [places, kEllipseQuarters] receives ellipses that hold the
// pixels that surfels may reach.
void cuda_project_surfels(const CudaCall& call, const ProjectTarget& to, float4* ellipses, cudaStream_t stream);
// Renders like cuda_draw. If there is a median depth, `medians` receives one past the list position of its Gaussian, or
// 0.
void cuda_draw_surfels(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const Outputs& outputs,
                       int* lasts, int* medians, cudaStream_t stream);
void cuda_blend_surfels_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                                 const Upstream& upstream, const int* lasts, const int* medians, const CudaRows& rows,
                                 cudaStream_t stream);
void cuda_project_surfels_backward(const CudaCall& call, const CudaRecords& records, const Upstream& upstream,
                                   const CudaRows& rows, const Gradients& gradients, double* block_sums,
                                   cudaStream_t stream);

}  // namespace lumigrad::gaussians
