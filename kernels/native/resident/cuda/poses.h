// Poses on a CUDA device, see resident/pose.h.
#pragma once

#include <cuda_runtime.h>

#include "resident/pose.h"

namespace lumigrad::resident {

void cuda_draw_pose(const double* pose, gaussians::Pose* to, cudaStream_t stream);
void cuda_motion_gradient(const double* sums, const double* pose, float* gradient, cudaStream_t stream);
void cuda_move_pose(double* pose, const float* motion, cudaStream_t stream);
void cuda_draw_sensor(const double* start, const double* end, bool rolling, gaussians::SensorPose* sensor,
                      gaussians::Pose* to, cudaStream_t stream);
void cuda_sensor_motion_gradients(const double* pose_sums, const double* sensor_sums, const double* start,
                                  const double* end, bool rolling, float* to_start, float* to_end, cudaStream_t stream);

}  // namespace lumigrad::resident
