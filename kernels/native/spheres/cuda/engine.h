// The sphere engine on a CUDA device: everything is queued on the caller's stream. The host waits for the device once
// in the forward pass, for the number of (tile, sphere) pairs, while the device sorts.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "common/cuda/pairs.h"
#include "common/cuda/tiles.h"
#include "common/cuda/timer.h"
#include "spheres/params.h"

namespace lumigrad::spheres {

// State that the calls on a device share; only one call may use it at a time.
struct CudaWorkspace {
  PairCount pairs;
  // More pairs than this are not listed: tiles then go through all spheres, which is slower but needs no memory.
  std::size_t pair_limit = std::size_t{1} << 26;
};

// What the forward pass of a view retains on the device for the backward pass.
struct CudaPass {
  TileLists lists{};  // Of ranks.
  TileBuffers tiles;
  DeviceBuffer<float4> records;    // [N, 4]
  DeviceBuffer<uint2> rectangles;  // [N] see CudaPrepared
  DeviceBuffer<float> area;        // [N] of compat

  std::size_t bytes() const { return tiles.bytes() + records.bytes() + rectangles.bytes() + area.bytes(); }
};

// Both work on the current device. The timer's stages are "setup", "sort", "bin" and "blend".
DeviceTimer cuda_forward(const Camera& camera, const Settings& settings, const Scene& scene, const Outputs& outputs,
                         CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);
// The timer's stages are "blend" and "finish".
DeviceTimer cuda_backward(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                          const Gradients& gradients, const CudaPass& pass, cudaStream_t stream);

}  // namespace lumigrad::spheres
