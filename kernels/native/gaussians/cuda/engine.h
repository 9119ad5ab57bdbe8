// The Gaussian engine on a CUDA device. All work is queued on the caller's stream, for all views of a call at once. In
// the forward pass the host waits once, for the number of (tile, Gaussian) pairs, while the device sorts. With
// capacities in the workspace it does not wait once some calls have been made.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "common/cuda/pairs.h"
#include "common/cuda/staging.h"
#include "common/cuda/tiles.h"
#include "common/cuda/timer.h"
#include "gaussians/film.h"
#include "gaussians/packed.h"
#include "gaussians/sensor_pose.h"

namespace lumigrad::gaussians {

// State that the calls on a device share; only one call may use it at a time.
struct CudaWorkspace {
  PairCount pairs;
  // Capacities for similar calls, whose lists get the length that earlier calls needed. Not for `deterministic` calls.
  std::optional<PairCapacities> capacities;
  // If there are more pairs than this, or more than fit in memory, no pairs are listed: tiles then go through all
  // Gaussians, which is slower but needs no memory. Pairs are numbered in 31 bits.
  std::size_t pair_limit = 0x7FFFFFFF;
  DeviceStaging staging;
  // Poses of the views on the device, for a single slice, in place of the scene's; or null.
  const Pose* poses = nullptr;
  // Intrinsics of the views on the device, in place of the views' own; or null.
  const Film* films = nullptr;
  // Poses of the sensors on the device, in place of their own; or null.
  const SensorPose* sensors = nullptr;
};

// The state of the forward pass that is kept on the device for the backward pass.
struct CudaPass {
  bool differentiable = true;  // Set before the forward pass: whether there may be a backward pass.
  Features features;
  TileLists lists{};
  TileBuffers tiles;
  DeviceBuffer<unsigned> before;  // This and the next two belong to CudaPlaces.
  DeviceBuffer<uint2> lanes;
  DeviceBuffer<unsigned> items;
  DeviceBuffer<float4> records;       // [places, 4], see records.cuh
  DeviceBuffer<float> more_features;  // [places, stride], if they do not fit into a record
  DeviceBuffer<int> lasts;            // [V, H, W] position from which the tile's list has nothing for a pixel
  DeviceBuffer<float> segments;       // See Segments; empty if the backward pass goes through whole lists.
  DeviceBuffer<unsigned> segment_tiles;
  DeviceBuffer<float> rays;   // Along rays: the pixels' rays, see rays/field.cuh.
  DeviceBuffer<int> medians;  // [V, H, W] positions of the median depths of surfels, like `lasts`; or empty.

  std::size_t bytes() const {
    return tiles.bytes() + before.bytes() + lanes.bytes() + items.bytes() + records.bytes() + more_features.bytes() +
           lasts.bytes() + segments.bytes() + segment_tiles.bytes() + rays.bytes() + medians.bytes();
  }
};

// Runs on the current device. The timer's stages are "project", "sort", "bin" and "blend".
DeviceTimer cuda_forward(const View* views, int count, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream);
// Runs on the current device. The timer's stages are "blend_backward" and "project_backward".
DeviceTimer cuda_backward(const View* views, int count, const Settings& settings, const Scene& scene,
                          const Upstream& upstream, const Gradients& gradients, const CudaPass& pass,
                          CudaWorkspace& workspace, cudaStream_t stream);

// Writes the rows of all blocks in order, from row `begin` on. Either all blocks are packed, or none.
void cuda_unpack(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to, cudaStream_t stream);

}  // namespace lumigrad::gaussians
