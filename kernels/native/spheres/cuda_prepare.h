// What the CUDA kernels know of a scene and a view before they draw: records, depth order and tile lists.
#pragma once

#include "common/device_memory.h"
#include "spheres/cuda.h"
#include "spheres/math_setup.h"

namespace lumigrad::spheres {

inline constexpr int kCudaTile = 16;  // Pixels along each side.

struct CudaCounters {
  unsigned long long pairs;  // (tile, sphere) pairs of the view
  unsigned visible;          // Spheres that are not dropped.
};

// Passed to kernels by value.
struct CudaPrepared {
  int tiles_x, tiles_y;
  unsigned capacity;            // Pairs there is room for; 0: tiles are not listed.
  const float4* records;        // [N, 4] by sphere
  const uint2* rectangles;      // [N] candidate pixels: x0 | x1 << 16, y0 | y1 << 16
  const float* area;            // [N] as on the CPU: negative below 3 x 3
  const unsigned* order;        // [N] spheres, nearest first; a sphere's place in it is its rank
  const unsigned* tile_starts;  // [tiles + 1] into `ranks`
  const unsigned* ranks;        // The tiles' spheres, nearest first.
  const CudaCounters* counters;
};

// Owns what CudaPrepared points to.
struct CudaBuffers {
  DeviceBuffer<float4> records;
  DeviceBuffer<uint2> rectangles;
  DeviceBuffer<float> area;
  DeviceBuffer<unsigned> order, tile_starts, ranks;
  DeviceBuffer<CudaCounters> counters;
};

CudaPrepared cuda_prepare(const Camera& camera, const Settings& settings, const Scene& scene, CudaWorkspace& workspace,
                          cudaStream_t stream, CudaBuffers& buffers, DeviceTimer& timer);

}  // namespace lumigrad::spheres
