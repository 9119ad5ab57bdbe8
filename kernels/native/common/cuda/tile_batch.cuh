// A block of threads renders a tile, one thread per pixel. It fetches its items in batches into shared memory, from the
// tile's list, or from all items of the view if tiles were not listed.
#pragma once

#include "common/cuda/primitives.cuh"
#include "common/cuda/tiles.h"

namespace lumigrad {

inline constexpr int kTilePixels = kDeviceTile * kDeviceTile;
inline constexpr int kTileWarps = kTilePixels / kWarp;

// The pixels of a warp: neighbouring pixels mostly have the same items.
inline constexpr int kWarpWidth = 8, kWarpHeight = 4;

// The view and pixel of a thread.
struct TilePixel {
  int view, x, y;
  bool on_film;
};

__device__ inline TilePixel tile_pixel(const TileLists& lists, int width, int height) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  const int tile_x = static_cast<int>(blockIdx.x) % lists.tiles_x, row = static_cast<int>(blockIdx.x) / lists.tiles_x;
  constexpr int kAcross = kDeviceTile / kWarpWidth;
  const int x = tile_x * kDeviceTile + warp % kAcross * kWarpWidth + lane % kWarpWidth;
  const int y = row % lists.tiles_y * kDeviceTile + warp / kAcross * kWarpHeight + lane / kWarpWidth;
  return {row / lists.tiles_y, x, y, x < width && y < height};
}

// The items of a tile.
struct TileList {
  const unsigned* entries;  // Null: ranks from `first` on.
  unsigned first;
  int length;
  int left, top;  // Corner of the tile, pixels.

  __device__ explicit TileList(const TileLists& lists, unsigned tile = blockIdx.x) {
    const unsigned row = tile / lists.tiles_x;
    left = static_cast<int>(tile % lists.tiles_x) * kDeviceTile;
    top = static_cast<int>(row % lists.tiles_y) * kDeviceTile;
    unsigned end;
    first = lists.tile_starts[tile];
    if (first != kUnlisted) {
      end = lists.tile_starts[tile + 1];
      entries = lists.entries + first;
    } else {
      const unsigned view = row / lists.tiles_y;
      first = lists.view_ranks[view];
      end = lists.view_ranks[view + 1];
      entries = nullptr;
    }
    length = static_cast<int>(end - first);
  }
};

// Up to one item per thread, in shared memory. A record has kQuarters groups of four floats.
template <int kQuarters>
struct TileBatch {
  SharedArray<float4, kTilePixels * kQuarters> records;
  SharedArray<unsigned, kTilePixels> items;
  SharedArray<int, kTileWarps> counts;

  // Chooses, in order, those of the list's next items from `position` on that reach the tile; returns their number. All
  // threads of the block must call it together, and again only after a barrier.
  //   of_entry(e) returns the item of an entry of the lists; reaches(item) returns whether it reaches the tile, and is
  //   called only if tiles were not listed; keep(place, item, entry, i) is called for each chosen item, where i is its
  //   position in the list, and the entry is a rank if there are no lists.
  template <class OfEntry, class Reaches, class Keep>
  __device__ int choose(const TileLists& lists, const TileList& list, int position, const OfEntry& of_entry,
                        const Reaches& reaches, const Keep& keep) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, i = position + thread;
    unsigned item = 0, entry = 0;
    bool wanted = i < list.length;
    if (wanted) {
      if (list.entries != nullptr) {
        entry = list.entries[i];
        item = of_entry(entry);
      } else {
        entry = list.first + static_cast<unsigned>(i);
        item = lists.order[entry];
        wanted = reaches(item);
      }
    }
    const unsigned kept = __ballot_sync(kWholeWarp, wanted);
    if (lane_index() == 0) counts[warp] = __popc(kept);
    __syncthreads();
    int place = __popc(kept & lanes_below()), total = 0;
    for (int w = 0; w < kTileWarps; ++w) {
      place += w < warp ? counts[w] : 0;
      total += counts[w];
    }
    if (wanted) {
      items[place] = item;
      keep(place, item, entry, i);
    }
    __syncthreads();
    return total;
  }

  // Calls `choose`, and fetches the records of the chosen items.
  template <class OfEntry, class Reaches, class Keep>
  __device__ int fetch(const TileLists& lists, const TileList& list, const float4* all_records, int position,
                       const OfEntry& of_entry, const Reaches& reaches, const Keep& keep) {
    const int thread = static_cast<int>(threadIdx.x);
    const int total = choose(lists, list, position, of_entry, reaches, keep);
    for (int k = thread; k < kQuarters * total; k += kTilePixels) {
      records[k] = all_records[kQuarters * static_cast<int64_t>(items[k / kQuarters]) + k % kQuarters];
    }
    __syncthreads();
    return total;
  }

  __device__ const float* record(int i) { return &records[kQuarters * i].x; }
};

}  // namespace lumigrad
