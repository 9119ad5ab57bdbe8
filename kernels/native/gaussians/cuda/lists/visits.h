// The Gaussians that the images of a forward pass needed, found in the state that it left.
#pragma once

#include "gaussians/cuda/engine.h"
#include "gaussians/visits.h"

namespace lumigrad::gaussians {

// Writes `visits`, for ellipses. Runs like cuda_forward; the timer's only stage is "blend".
DeviceTimer cuda_visits(const View* views, int count, const Settings& settings, const Scene& scene,
                        const Visits& visits, const CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::gaussians
