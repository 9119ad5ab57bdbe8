// The Gaussian engine on a CUDA device: everything is queued on the caller's stream, all views of a call at once. The
// host waits for the device once in the forward pass, for the number of (tile, Gaussian) pairs, while the device sorts;
// not where the workspace has capacities, once some calls have been made.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <optional>

#include "common/cuda/pairs.h"
#include "common/cuda/staging.h"
#include "common/cuda/tiles.h"
#include "common/cuda/timer.h"
#include "gaussians/params.h"

namespace lumigrad::gaussians {

// State that the calls on a device share; only one call may use it at a time.
struct CudaWorkspace {
  PairCount pairs;
  // Capacities for calls that are much alike: lists are as long as those before needed. Not of `deterministic` ones.
  std::optional<PairCapacities> capacities;
  // More pairs than this, or than the call or the device has room for, are not listed: tiles then go through all
  // Gaussians, which is slower but needs no memory. Pairs are numbered in 31 bits.
  std::size_t pair_limit = 0x7FFFFFFF;
  DeviceStaging staging;
  // Poses of the views on the device, instead of the scene's, of one slice; or null.
  const Pose* poses = nullptr;
};

// State of the forward pass that is kept on the device for the backward pass.
struct CudaPass {
  bool differentiable = true;  // Set before the forward pass: whether there may be a backward pass.
  Features features;
  TileLists lists{};
  TileBuffers tiles;
  DeviceBuffer<unsigned> before;  // Of CudaPlaces, as the next two.
  DeviceBuffer<uint2> lanes;
  DeviceBuffer<unsigned> items;
  DeviceBuffer<float4> records;       // [places, 4], see records.cuh
  DeviceBuffer<float> more_features;  // [places, stride], where they do not fit into a record
  DeviceBuffer<int> lasts;            // [V, H, W] from where on its tile's list has nothing for a pixel
  DeviceBuffer<float> segments;       // See Segments; none if a backward pass goes through whole lists.
  DeviceBuffer<unsigned> segment_tiles;
  DeviceBuffer<float> rays;   // Along rays: those of the pixels, see rays/field.cuh
  DeviceBuffer<int> medians;  // Places [V, H, W] of the median depth of surfels, as lasts; or none.

  std::size_t bytes() const {
    return tiles.bytes() + before.bytes() + lanes.bytes() + items.bytes() + records.bytes() + more_features.bytes() +
           lasts.bytes() + segments.bytes() + segment_tiles.bytes() + rays.bytes() + medians.bytes();
  }
};

// Both work on the current device. The timer's stages are "project", "sort", "bin" and "blend".
DeviceTimer cuda_forward(const View* views, int count, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);
// The timer's stages are "blend_backward" and "project_backward".
DeviceTimer cuda_backward(const View* views, int count, const Settings& settings, const Scene& scene,
                          const Upstream& upstream, const Gradients& gradients, const CudaPass& pass,
                          CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::gaussians
