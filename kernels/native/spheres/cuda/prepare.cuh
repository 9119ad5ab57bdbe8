// The results of preparing a scene for a view: records, depth order and tile lists; and the spheres that a tile loads.
#pragma once

#include <algorithm>
#include <vector>

#include "common/cuda/tile_batch.cuh"
#include "common/cuda/tiles.h"
#include "spheres/cuda/engine.h"
#include "spheres/cuda/exact_view.cuh"
#include "spheres/math/setup.h"

namespace lumigrad::spheres {

// Prepared data of a view.
struct CudaPrepared {
  TileLists lists;          // Lists of ranks, for all views; `order` holds spheres.
  const float4* records;    // [N, 4] by sphere
  const uint2* rectangles;  // [N] candidate pixels: x0 | x1 << 16, y0 | y1 << 16
  const float* area;        // [N] compat: area of Pulsar's rectangle, negative if it is below 3 x 3
  CudaExactView view;       // For exact.
};

// Prepared data by view.
std::vector<CudaPrepared> prepared_of(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                                      const CudaPass& pass);
void cuda_prepare(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene, CudaPass& pass,
                  CudaWorkspace& workspace, DeviceTimer& timer, cudaStream_t stream);

inline unsigned tiles_of(const TileLists& lists) {
  return static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
}

// The view of the block's tile.
__device__ inline unsigned view_of_block(const TileLists& lists) {
  return blockIdx.x / static_cast<unsigned>(lists.tiles_x * lists.tiles_y);
}

// The start of a view's image; null stays null.
template <class T>
T* of_view(T* image, const Camera& camera, std::size_t view, int values) {
  return image != nullptr ? image + view * camera.width * camera.height * values : nullptr;
}

// Uploads the kernels' data of each view.
template <class T>
DeviceBuffer<T> uploaded(const std::vector<T>& views, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceBuffer<T> to(views.size(), stream);
  workspace.staging.copy(to.data(), views.data(), to.bytes(), stream);
  return to;
}

// Loads a view's data into shared memory. All threads of the block must call it together.
template <class T>
__device__ inline void load_view(T& to, const T& from) {
  static_assert(sizeof(T) % sizeof(unsigned) == 0);
  for (unsigned i = threadIdx.x; i < sizeof(T) / sizeof(unsigned); i += blockDim.x) {
    reinterpret_cast<unsigned*>(&to)[i] = reinterpret_cast<const unsigned*>(&from)[i];
  }
  __syncthreads();
}

// Calls launch(orthogonal) for each projection in use; blocks whose view has the other projection return.
template <class Launch>
void each_projection(const std::vector<Camera>& cameras, const Launch& launch) {
  for (const bool orthogonal : {false, true}) {
    const auto has = [&](const Camera& camera) { return (camera.orthogonal != 0) == orthogonal; };
    if (std::any_of(cameras.begin(), cameras.end(), has)) launch(orthogonal);
  }
}

// Whether a rectangle (see CudaPrepared) has pixels in [x, x + width) x [y, y + height).
__device__ inline bool overlaps(uint2 r, int x, int y, int width, int height) {
  return static_cast<int>(r.x & 0xFFFF)<x + width&& static_cast<int>(r.x >> 16)> x &&
         static_cast<int>(r.y & 0xFFFF)<y + height&& static_cast<int>(r.y >> 16)> y;
}

// The spheres that a tile fetches: records, ids, ranks, and the rectangles of their candidate pixels.
struct SphereBatch {
  TileBatch<4> batch;
  SharedArray<uint2, kTilePixels> rectangles;
  SharedArray<unsigned, kTilePixels> ranks;

  // Fetches, in order, those of the list's next spheres from `position` on that reach the tile; returns their number.
  // All threads of the block must call it together, and again only after a barrier.
  __device__ int fetch(const CudaPrepared& prepared, const TileList& list, int position) {
    const auto id_of = [&](unsigned rank) { return prepared.lists.order[rank]; };
    const auto reaches = [&](unsigned id) {
      return overlaps(prepared.rectangles[id], list.left, list.top, kDeviceTile, kDeviceTile);
    };
    const auto keep = [&](int place, unsigned id, unsigned rank, int) {
      ranks[place] = rank;
      rectangles[place] = prepared.rectangles[id];
    };
    return batch.fetch(prepared.lists, list, prepared.records, position, id_of, reaches, keep);
  }

  __device__ const float* record(int i) { return batch.record(i); }
  __device__ unsigned id(int i) { return batch.items[i]; }

  // Bits of the 32 spheres from `begin` on that overlap the warp's pixels. The whole warp must call it.
  __device__ unsigned reaching(int begin, int count, const TilePixel& place) {
    const int lane = lane_index(), i = begin + lane;
    const int x = place.x - lane % kWarpWidth, y = place.y - lane / kWarpWidth;
    return __ballot_sync(kWholeWarp, i < count && overlaps(rectangles[i], x, y, kWarpWidth, kWarpHeight));
  }

  // Whether the sphere is a candidate of the pixel.
  __device__ bool reaches(int i, const TilePixel& place) { return overlaps(rectangles[i], place.x, place.y, 1, 1); }
};

}  // namespace lumigrad::spheres
