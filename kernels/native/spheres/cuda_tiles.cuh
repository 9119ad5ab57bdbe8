// A block of threads draws a tile, a thread per pixel. It fetches its spheres in batches into shared memory, from the
// tile's list, or from all spheres where the tiles were not listed.
#pragma once

#include "common/device_primitives.h"
#include "spheres/cuda_prepare.h"

namespace lumigrad::spheres {

inline constexpr int kTilePixels = kCudaTile * kCudaTile;
inline constexpr int kTileWarps = kTilePixels / kWarp;

// Pixels of a warp: neighbours mostly hit the same spheres.
inline constexpr int kWarpWidth = 8, kWarpHeight = 4;

struct TilePixel {
  int x, y;
  bool on_film;
};

__device__ inline TilePixel tile_pixel(const Camera& camera, const CudaPrepared& prepared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  const int tile_x = static_cast<int>(blockIdx.x) % prepared.tiles_x;
  const int tile_y = static_cast<int>(blockIdx.x) / prepared.tiles_x;
  constexpr int kAcross = kCudaTile / kWarpWidth;
  const int x = tile_x * kCudaTile + warp % kAcross * kWarpWidth + lane % kWarpWidth;
  const int y = tile_y * kCudaTile + warp / kAcross * kWarpHeight + lane / kWarpWidth;
  return {x, y, x < camera.width && y < camera.height};
}

// Whether a rectangle (see CudaPrepared) has pixels in [x, x + width) x [y, y + height).
__device__ inline bool overlaps(uint2 r, int x, int y, int width, int height) {
  return static_cast<int>(r.x & 0xFFFF)<x + width&& static_cast<int>(r.x >> 16)> x &&
         static_cast<int>(r.y & 0xFFFF)<y + height&& static_cast<int>(r.y >> 16)> y;
}

// The spheres that a tile has to look at.
struct TileList {
  const unsigned* ranks;  // Null: all of them.
  int length;
  int left, top;  // Of the tile, pixels.

  __device__ TileList(const CudaPrepared& prepared) {
    const int tile = static_cast<int>(blockIdx.x);
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
      keep = list.ranks != nullptr || overlaps(rectangle, list.left, list.top, kCudaTile, kCudaTile);
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

  // Which of the 32 spheres from `begin` on reach into the warp's pixels, as bits. The whole warp calls it.
  __device__ unsigned reaching(int begin, int count, const TilePixel& place) {
    const int lane = lane_index(), i = begin + lane;
    const int x = place.x - lane % kWarpWidth, y = place.y - lane / kWarpWidth;
    return __ballot_sync(kWholeWarp, i < count && overlaps(rectangles[i], x, y, kWarpWidth, kWarpHeight));
  }

  // Whether the sphere has to be looked at in the pixel.
  __device__ bool reaches(int i, const TilePixel& place) { return overlaps(rectangles[i], place.x, place.y, 1, 1); }
};

}  // namespace lumigrad::spheres
