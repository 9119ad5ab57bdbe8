// Training on a CUDA device: everything is queued on the caller's stream of the current device.
#pragma once

#include <cuda_runtime.h>

#include "common/cuda/timer.h"
#include "training/params.h"

namespace lumigrad::training {

// Steps all groups; `sums`, on the device, become kAdamSums for each.
DeviceTimer cuda_adam(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums,
                      cudaStream_t stream);

// `values`, on the device, become kLossValues for each view.
DeviceTimer cuda_image_loss(const ImageLoss& loss, double* values, cudaStream_t stream);

}  // namespace lumigrad::training
