// The Gaussian with the largest weight in each pixel, found in the state that the forward pass left.
#pragma once

#include "gaussians/cuda/engine.h"

namespace lumigrad::gaussians {

// Writes ids [V, H, W]: numbers of Gaussians within their scene, the nearest of equal weights, and -1 where none was
// blended. Runs like cuda_forward; the timer's only stage is "blend".
DeviceTimer cuda_ids(const View* views, int count, const Settings& settings, const Scene& scene, int32_t* ids,
                     const CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::gaussians
