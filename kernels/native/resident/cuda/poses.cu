// The pose of one view at a time: a few numbers, for which one thread is enough.
#include "resident/cuda/poses.h"

#include "common/cuda/launch.h"

namespace lumigrad::resident {
namespace {

__global__ void __launch_bounds__(1) draw_pose_kernel(const double* pose, gaussians::Pose* to) {
  *to = drawn_pose(pose);
}

__global__ void __launch_bounds__(1) motion_gradient_kernel(const double* sums, const double* pose, float* gradient) {
  motion_gradient(sums, pose, gradient);
}

__global__ void __launch_bounds__(1) move_pose_kernel(double* pose, const float* motion) { move_pose(pose, motion); }

__global__ void __launch_bounds__(1) draw_sensor_kernel(const double* start, const double* end, bool rolling,
                                                        gaussians::SensorPose* sensor, gaussians::Pose* to) {
  draw_sensor(start, end, rolling, sensor, to);
}

__global__ void __launch_bounds__(1)
    sensor_motion_gradients_kernel(const double* pose_sums, const double* sensor_sums, const double* start,
                                   const double* end, bool rolling, float* to_start, float* to_end) {
  sensor_motion_gradients(pose_sums, sensor_sums, start, end, rolling, to_start, to_end);
}

}  // namespace

void cuda_draw_sensor(const double* start, const double* end, bool rolling, gaussians::SensorPose* sensor,
                      gaussians::Pose* to, cudaStream_t stream) {
  launch(draw_sensor_kernel, 1, 1, 0, stream, start, end, rolling, sensor, to);
}

void cuda_sensor_motion_gradients(const double* pose_sums, const double* sensor_sums, const double* start,
                                  const double* end, bool rolling, float* to_start, float* to_end,
                                  cudaStream_t stream) {
  launch(sensor_motion_gradients_kernel, 1, 1, 0, stream, pose_sums, sensor_sums, start, end, rolling, to_start,
         to_end);
}

void cuda_draw_pose(const double* pose, gaussians::Pose* to, cudaStream_t stream) {
  launch(draw_pose_kernel, 1, 1, 0, stream, pose, to);
}

void cuda_motion_gradient(const double* sums, const double* pose, float* gradient, cudaStream_t stream) {
  launch(motion_gradient_kernel, 1, 1, 0, stream, sums, pose, gradient);
}

void cuda_move_pose(double* pose, const float* motion, cudaStream_t stream) {
  launch(move_pose_kernel, 1, 1, 0, stream, pose, motion);
}

}  // namespace lumigrad::resident
