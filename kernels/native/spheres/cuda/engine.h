// The sphere engine on a CUDA device: everything is queued on the caller's stream, and the host never waits for it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "common/cuda/pairs.h"
#include "common/cuda/timer.h"
#include "spheres/params.h"

namespace lumigrad::spheres {

// Estimates from earlier calls on the same device; only one call may use it at a time.
struct CudaWorkspace {
  PairRoom pairs{std::size_t{1} << 26};
};

// Both work on the current device. The timer's stages are "setup", "sort", "bin", "blend" and, of the backward pass,
// "finish".
DeviceTimer cuda_forward(const Camera& camera, const Settings& settings, const Scene& scene, const Outputs& outputs,
                         CudaWorkspace& workspace, cudaStream_t stream);
DeviceTimer cuda_backward(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                          const Gradients& gradients, CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::spheres
