// The stages of a call along rays that differ from those on the film; each queues its kernels and returns.
#pragma once

#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {

// Writes the rays (see rays/field.cuh), and after cuda_project replaces its records by those along rays and counts
// their tiles; `masks` are those of RayReach.
void cuda_rays(const CudaCallData& data, const TileLists& lists, const ProjectTarget& to, float* rays,
               unsigned long long* masks, cudaStream_t stream);
// Draws as cuda_draw does.
void cuda_draw_rays(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const float* rays,
                    const Outputs& outputs, int* lasts, cudaStream_t stream);
// Passes back as cuda_blend_backward does; writes the gradients of the rays, laid out as these, unless `to_rays` is
// null.
void cuda_blend_rays_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                              const float* rays, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                              float* to_rays, cudaStream_t stream);
// The same for rows [V, N, kRayFields] of the sums for moving slices (see kSliceMotionSums).
void cuda_blend_slices_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                                const float* rays, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                                cudaStream_t stream);
// Turns the gradients of the rays into those of rays that were given, or else of lenses and motions, which are added to
// Gradients::sensors after cuda_sensor_backward.
void cuda_rays_backward(const CudaCallData& data, const TileLists& lists, const float* rays, const float* v_rays,
                        const Gradients& gradients, cudaStream_t stream);

}  // namespace lumigrad::gaussians
