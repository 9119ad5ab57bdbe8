// The sphere engine on a CUDA device: everything is queued on the caller's stream, all views of a call at once. The
// host waits for the device once in the forward pass, for the number of (tile, sphere) pairs, while the device sorts.
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

// State that the calls on a device share; only one call may use it at a time.
struct CudaWorkspace {
  PairCount pairs;
  // More pairs than this, or than the call has room for, are not listed: tiles then go through all spheres, which is
  // slower but needs no memory.
  std::size_t pair_limit = std::size_t{1} << 28;
  DeviceStaging staging;
};

// State of the forward pass that is kept on the device for the backward pass.
struct CudaPass {
  TileLists lists{};  // Lists of ranks.
  TileBuffers tiles;
  DeviceBuffer<unsigned> spheres;  // [V * N] the spheres by rank, if there are several views: they are less than items
  DeviceBuffer<float4> records;    // [V, N, 4]
  DeviceBuffer<uint2> rectangles;  // [V, N] see CudaPrepared
  DeviceBuffer<float> area;        // [V, N] of compat

  std::size_t bytes() const {
    return tiles.bytes() + spheres.bytes() + records.bytes() + rectangles.bytes() + area.bytes();
  }
};

// Both work on the current device. Images, and the sums of cameras, have a first axis for the views; other gradients
// are summed over them. The timer's stages are "setup", "sort", "bin" and "blend".
DeviceTimer cuda_forward(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);
// The timer's stages are "blend" and "finish".
DeviceTimer cuda_backward(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                          const Upstream& upstream, const Gradients& gradients, const CudaPass& pass,
                          CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::spheres
