// What a tile fetches of its spheres: records, ids and ranks, and the rectangles of their candidate pixels.
#pragma once

#include "common/device_batch.cuh"
#include "spheres/cuda_prepare.h"

namespace lumigrad::spheres {

// Whether a rectangle (see CudaPrepared) has pixels in [x, x + width) x [y, y + height).
__device__ inline bool overlaps(uint2 r, int x, int y, int width, int height) {
  return static_cast<int>(r.x & 0xFFFF)<x + width&& static_cast<int>(r.x >> 16)> x &&
         static_cast<int>(r.y & 0xFFFF)<y + height&& static_cast<int>(r.y >> 16)> y;
}

struct SphereBatch {
  TileBatch<4> batch;
  SharedArray<uint2, kTilePixels> rectangles;
  SharedArray<unsigned, kTilePixels> ranks;

  // Fetches the spheres among the list's next ones, from `position` on, that reach the tile, in order; returns how
  // many. The threads of the block call it together, and again only after a barrier.
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
