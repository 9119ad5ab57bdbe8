// Poses on a CUDA device, see resident/pose.h.
#pragma once

#include <cuda_runtime.h>

#include "resident/pose.h"

namespace lumigrad::resident {

void cuda_draw_pose(const double* pose, gaussians::Pose* to, cudaStream_t stream);
void cuda_motion_gradient(const double* sums, const double* pose, float* gradient, cudaStream_t stream);
void cuda_move_pose(double* pose, const float* motion, cudaStream_t stream);

}  // namespace lumigrad::resident
