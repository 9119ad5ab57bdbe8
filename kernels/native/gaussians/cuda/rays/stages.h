// The stages of a call along rays that differ from those on the film; each queues its kernels and returns.
#pragma once

#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {

// Writes the rays (see rays/field.cuh), and after cuda_project replaces its records by records along rays and counts
// their tiles; `masks` as in RayReach.
void cuda_rays(const CudaCallData& data, const TileLists& lists, const ProjectTarget& to, float* rays,
               unsigned long long* masks, cudaStream_t stream);
// Renders like cuda_draw.
void cuda_draw_rays(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const float* rays,
                    const Outputs& outputs, int* lasts, cudaStream_t stream);
// Backpropagates like cuda_blend_backward; unless `to_rays` is null, writes the gradients of the rays, laid out like
// the rays.
void cuda_blend_rays_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                              const float* rays, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                              float* to_rays, cudaStream_t stream);
// Sums into rows [V, N, kRayFields] for moving slices (see kSliceMotionSums).
void cuda_blend_slices_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                                const float* rays, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                                cudaStream_t stream);
// Converts the gradients of the rays into gradients of given rays, or else of lenses and motions, which are added to
// Gradients::sensors after cuda_sensor_backward.
void cuda_rays_backward(const CudaCallData& data, const TileLists& lists, const float* rays, const float* v_rays,
                        const Gradients& gradients, cudaStream_t stream);

}  // namespace lumigrad::gaussians
