// A block of threads draws a tile, a thread per pixel. It fetches its spheres in batches into shared memory, from the
// tile's list, or from all spheres where the tiles were not listed.
#pragma once

#include "common/device_primitives.h"
#include "spheres/cuda_prepare.h"

namespace lumigrad::spheres {

inline constexpr int kTilePixels = kCudaTile * kCudaTile;
inline constexpr int kTileWarps = kTilePixels / kWarp;

struct TilePixel {
  int x, y;
  bool on_film;
};

// Warps are 8 x 4 pixels: neighbours mostly hit the same spheres.
__device__ inline TilePixel tile_pixel(const Camera& camera, const CudaPrepared& prepared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  const int tile_x = static_cast<int>(blockIdx.x) % prepared.tiles_x;
  const int tile_y = static_cast<int>(blockIdx.x) / prepared.tiles_x;
  const int x = tile_x * kCudaTile + warp % 2 * 8 + lane % 8, y = tile_y * kCudaTile + warp / 2 * 4 + lane / 8;
  return {x, y, x < camera.width && y < camera.height};
}

// The spheres that a tile has to look at.
struct TileList {
  const unsigned* ranks;  // Null: all of them.
  int length;
  unsigned left, top;  // Of the tile, pixels.

  __device__ TileList(const CudaPrepared& prepared) {
    const unsigned tile = blockIdx.x;
    left = tile % prepared.tiles_x * kCudaTile;
    top = tile / prepared.tiles_x * kCudaTile;
    if (prepared.capacity > 0 && prepared.counters->pairs <= prepared.capacity) {
      const unsigned begin = prepared.tile_starts[tile];
      ranks = prepared.ranks + begin;
      length = static_cast<int>(prepared.tile_starts[tile + 1] - begin);
    } else {
      ranks = nullptr;
      length = static_cast<int>(prepared.counters->visible);
    }
  }

  __device__ bool reaches(uint2 r) const {
    return (r.x & 0xFFFF) < left + kCudaTile && (r.x >> 16) > left && (r.y & 0xFFFF) < top + kCudaTile &&
           (r.y >> 16) > top;
  }
};

// Up to a sphere per thread, in shared memory.
struct TileBatch {
  SharedArray<float4, kTilePixels * 4> records;
  SharedArray<uint2, kTilePixels> rectangles;
  SharedArray<unsigned, kTilePixels> ids, ranks;
  SharedArray<int, kTileWarps> counts;

  // Fetches the spheres among the list's next ones, from `position` on, that reach the tile, in order; returns how
  // many. The threads of the block call it together, and again only after a barrier.
  __device__ int fetch(const CudaPrepared& prepared, const TileList& list, int position) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
    unsigned id = 0, rank = 0;
    uint2 rectangle = make_uint2(0, 0);
    bool keep = position + thread < list.length;
    if (keep) {
      rank = list.ranks != nullptr ? list.ranks[position + thread] : static_cast<unsigned>(position + thread);
      id = prepared.order[rank];
      rectangle = prepared.rectangles[id];
      keep = list.ranks != nullptr || list.reaches(rectangle);
    }
    const unsigned kept = __ballot_sync(kWholeWarp, keep);
    if (lane_index() == 0) counts[warp] = __popc(kept);
    __syncthreads();
    int place = __popc(kept & lanes_below()), total = 0;
    for (int w = 0; w < kTileWarps; ++w) {
      place += w < warp ? counts[w] : 0;
      total += counts[w];
    }
    if (keep) {
      ids[place] = id;
      ranks[place] = rank;
      rectangles[place] = rectangle;
    }
    __syncthreads();
    for (int i = thread; i < 4 * total; i += kTilePixels) {
      records[i] = prepared.records[4 * static_cast<int64_t>(ids[i / 4]) + i % 4];
    }
    __syncthreads();
    return total;
  }

  __device__ const float* record(int i) { return &records[4 * i].x; }

  // Whether the sphere has to be looked at in pixel (x, y).
  __device__ bool reaches(int i, int x, int y) {
    const uint2 r = rectangles[i];
    const auto px = static_cast<unsigned>(x), py = static_cast<unsigned>(y);
    return px >= (r.x & 0xFFFF) && px < (r.x >> 16) && py >= (r.y & 0xFFFF) && py < (r.y >> 16);
  }
};

}  // namespace lumigrad::spheres
