// The Gaussian with the largest weight in each pixel, found after the forward pass in what that has left.
#pragma once

#include "gaussians/cuda/engine.h"

namespace lumigrad::gaussians {

// Writes ids [V, H, W]: numbers of Gaussians within their scene, of equal weights the nearest, and -1 where none was
// blended. As cuda_forward; the timer's only stage is "blend".
DeviceTimer cuda_ids(const View* views, int count, const Settings& settings, const Scene& scene, int32_t* ids,
                     const CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::gaussians
