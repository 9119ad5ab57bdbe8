// Triangles and boxes of leaves, by sixteen lanes per leaf, and the boxes above them.
#pragma once

#include "meshes/build/stages.h"
#include "meshes/cuda/lanes.cuh"

namespace lumigrad::meshes {

inline constexpr int kTriangleStride = kTriangleFloats * kWide;
inline constexpr int kBoxStride = kBoxFloats * kWide;

struct BoxPair {
  float low[3], high[3];
};

// The box of missing children, far from everything.
__device__ inline BoxPair missing_box() { return {{kFar, kFar, kFar}, {-kFar, -kFar, -kFar}}; }

// Stores the triangle of a lane; returns its box.
__device__ inline BoxPair store_triangle(const float* positions, float rounder, const int32_t* corners, int64_t leaf,
                                         float* triangles, const RowLanes& lanes) {
  const int32_t* at = corners + 3 * (leaf * kWide + lanes.lane);
  float* to = triangles + leaf * kTriangleStride + lanes.lane;
  BoxPair box;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    const auto corner = [&](int i) { return on_grid(positions[3 * int64_t{at[i]} + k], rounder); };
    const float a = corner(0), b = corner(1), c = corner(2);
    to[k * kWide] = a;
    to[(3 + k) * kWide] = b - a;
    to[(6 + k) * kWide] = c - a;
    box.low[k] = fminf(fminf(a, b), c);
    box.high[k] = fmaxf(fmaxf(a, b), c);
  }
  return box;
}

// Encloses the boxes of all lanes; the first lane stores the result, widened, as child `child` of the nodes that begin
// at `boxes`. Returns the result.
__device__ inline BoxPair store_enclosing(BoxPair box, float margin, float* boxes, int64_t child,
                                          const RowLanes& lanes) {
  float* to = boxes + child / kWide * kBoxStride + child % kWide;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    box.low[k] = lanes.least(box.low[k]);
    box.high[k] = -lanes.least(-box.high[k]);
    if (lanes.lane == 0) to[k * kWide] = box.low[k] - margin;
    if (lanes.lane == 0) to[(3 + k) * kWide] = box.high[k] + margin;
  }
  return box;
}

// Queues the computation of the boxes of all levels except the lowest.
void fit_upper_boxes(const Tree& tree, float* boxes, cudaStream_t stream);

}  // namespace lumigrad::meshes
