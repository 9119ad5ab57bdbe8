// What the CUDA kernels know of a scene and a view before they draw: records, depth order and tile lists.
#pragma once

#include "common/device_tiles.h"
#include "spheres/cuda.h"
#include "spheres/math_setup.h"

namespace lumigrad::spheres {

// Passed to kernels by value.
struct CudaPrepared {
  TileLists lists;          // Of ranks.
  const float4* records;    // [N, 4] by sphere
  const uint2* rectangles;  // [N] candidate pixels: x0 | x1 << 16, y0 | y1 << 16
  const float* area;        // [N] as on the CPU: negative below 3 x 3
};

// Owns what CudaPrepared points to.
struct CudaBuffers {
  DeviceBuffer<float4> records;
  DeviceBuffer<uint2> rectangles;
  DeviceBuffer<float> area;
  TileBuffers lists;
};

CudaPrepared cuda_prepare(const Camera& camera, const Settings& settings, const Scene& scene, CudaWorkspace& workspace,
                          cudaStream_t stream, CudaBuffers& buffers, DeviceTimer& timer);

}  // namespace lumigrad::spheres
