// Training on a CUDA device: all work is queued on the caller's stream of the current device.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "common/cuda/timer.h"
#include "training/params.h"

namespace lumigrad::training {

// Steps all groups; `sums`, on the device, receives kAdamSums for each.
DeviceTimer cuda_adam(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums,
                      cudaStream_t stream);

// `values`, on the device, receives kLossValues for each view.
DeviceTimer cuda_image_loss(const ImageLoss& loss, double* values, cudaStream_t stream);

// These functions are like CpuEngine's of the same names; `to` is on the device.
DeviceTimer cuda_mean(const Mean& values, double* to, cudaStream_t stream);
DeviceTimer cuda_plane_loss(const std::vector<PlaneLoss>& views, double* values, cudaStream_t stream);
void cuda_expose(const Exposure& view, cudaStream_t stream);
void cuda_expose_backward(const Exposure& view, float* matrix, cudaStream_t stream);
void cuda_center_exposures(float* matrices, int64_t views, cudaStream_t stream);
void cuda_count_touched(const int32_t* touched, int64_t count, uint8_t* rows, double* to, cudaStream_t stream);

}  // namespace lumigrad::training
