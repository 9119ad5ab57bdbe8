// The sphere engine on a CUDA device. All work is queued on the caller's stream, for all views of a call at once. In
// the forward pass the host waits once, for the number of (tile, sphere) pairs, while the device sorts.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "common/cuda/pairs.h"
#include "common/cuda/staging.h"
#include "common/cuda/tiles.h"
#include "common/cuda/timer.h"
#include "spheres/params.h"

namespace lumigrad::spheres {

// The state that the calls on a device share; only one call may use it at a time.
struct CudaWorkspace {
  PairCount pairs;
  // If there are more pairs than this, or more than fit in the call's memory, no pairs are listed: tiles then go
  // through all spheres, which is slower but needs no memory.
  std::size_t pair_limit = std::size_t{1} << 28;
  DeviceStaging staging;
};

// The state of the forward pass that is kept on the device for the backward pass.
struct CudaPass {
  TileLists lists{};  // Lists of ranks.
  TileBuffers tiles;
  DeviceBuffer<unsigned> spheres;  // [V * N] the sphere of each rank, if there are several views
  DeviceBuffer<float4> records;    // [V, N, 4]
  DeviceBuffer<uint2> rectangles;  // [V, N] see CudaPrepared
  DeviceBuffer<float> area;        // [V, N] for compat

  std::size_t bytes() const {
    return tiles.bytes() + spheres.bytes() + records.bytes() + rectangles.bytes() + area.bytes();
  }
};

// Both functions run on the current device. Images and sums of cameras have a first axis for the views; other gradients
// are summed over the views. The timer's stages are "setup", "sort", "bin" and "blend".
DeviceTimer cuda_forward(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);
// The timer's stages are "blend" and "finish".
DeviceTimer cuda_backward(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                          const Upstream& upstream, const Gradients& gradients, const CudaPass& pass,
                          CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::spheres
