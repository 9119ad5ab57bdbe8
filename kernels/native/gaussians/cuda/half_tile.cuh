// A warp works on half a tile by itself: 16x8 pixels in four blocks of 8x4, with one pixel of each block per lane.
// Lanes load 32 Gaussians at a time, one each, and find the blocks that it reaches; then all lanes visit each in turn.
#pragma once

#include "gaussians/cuda/pixel.cuh"
#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {

// The number of warps of a block of threads: the two of a tile. Warps do not wait for each other, but a processor has
// room for another block only when the last warp of one is done, so more warps would leave it idle for longer.
inline constexpr int kHalfWarps = 2;
inline constexpr unsigned kHalfThreads = kHalfWarps * kWarp;
inline constexpr int kLanePixels = 4;
static_assert(kLanePixels * kWarp == kHalfPixels);

// The most features of the kernels for few features. Kernels for more features also support rarely requested outputs.
inline constexpr int kFewFeatures = 4;

// The blocks that a multiprocessor should hold at once, which limits a thread's registers to 64, 80 and 128.
constexpr int resident_blocks(int features) { return features <= 3 ? 16 : features <= kFewFeatures ? 12 : 8; }

// The number of the warp among all warps, uniform over its lanes, so that the compiler keeps derived values only once.
__device__ inline unsigned warp_number() {
  return blockIdx.x * kHalfWarps + __shfl_sync(kWholeWarp, threadIdx.x / kWarp, 0);
}

// The number of blocks of threads that gives each of `halves` a warp.
inline unsigned blocks_of_halves(std::size_t halves) {
  return static_cast<unsigned>((halves + kHalfWarps - 1) / kHalfWarps);
}

// Pixel `k` of a lane is in column k % 2 and row k / 2 of the blocks.
struct HalfTile {
  TileList list;
  int view;
  int column, row;    // The lane's first pixel.
  float x, y;         // Centre of the lane's first pixel.
  int width, height;  // Size of the images.

  __device__ HalfTile(const CudaCall& call, const TileLists& lists, unsigned tile, unsigned half)
      : list(lists, tile),
        view(static_cast<int>(tile / lists.tiles_x / lists.tiles_y)),
        width(call.width),
        height(call.height) {
    column = list.left + lane_index() % kWarpWidth;
    row = list.top + static_cast<int>(half) * 2 * kWarpHeight + lane_index() / kWarpWidth;
    x = static_cast<float>(column) + call.settings.pixel_center;
    y = static_cast<float>(row) + call.settings.pixel_center;
  }

  __device__ bool on_film(int k) const {
    return column + k % 2 * kWarpWidth < width && row + k / 2 * kWarpHeight < height;
  }
  // Index in the images of a pixel on the film.
  __device__ int64_t index(int k) const {
    return (static_cast<int64_t>(view) * height + row + k / 2 * kWarpHeight) * width + column + k % 2 * kWarpWidth;
  }
};

// Bits of the entries, up to 32 of the list, that reach each block of pixels, and any block.
struct Reached {
  unsigned blocks[kLanePixels], any;
};

// Up to 32 Gaussians per warp in shared memory: the first kQuarters groups of four floats of their records. The second
// group has the number of the row that receives the sums, and the item, in place of the range of pixels.
template <int kQuarters>
struct HalfGroup {
  SharedArray<float4, kHalfWarps * kQuarters * kWarp> quarters;

  __device__ float4& quarter(int q, int i) {
    return quarters[(static_cast<int>(threadIdx.x) / kWarp * kQuarters + q) * kWarp + i];
  }

  __device__ unsigned row(int i) { return __float_as_uint(quarter(1, i).z); }
  __device__ unsigned item(int i) { return __float_as_uint(quarter(1, i).w); }

  // Loads the entries [position, end), at most 32. The whole warp must call it; it may then read the entries, and must
  // call `done` before the next call. `by_pair`: whether rows belong to pairs, not to items.
  __device__ Reached load(const HalfTile& tile, const TileLists& lists, const CudaRecords& records,
                          const Limits& limits, int position, int end, bool by_pair) {
    const int i = position + lane_index();
    unsigned reached = 0, item;
    bool wanted = i < end;
    if (wanted) {
      const TileList& list = tile.list;
      if (list.entries != nullptr) {
        item = list.entries[i];
      } else {
        item = lists.order[list.first + static_cast<unsigned>(i)];
        wanted = reaches_tile(records.range(item), list);
      }
    }
    if (wanted) {
      float4 of[kQuarters];
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) of[q] = records.records[kRecordQuarters * static_cast<int64_t>(item) + q];
      const Ellipse<float> e{of[0].x, of[0].y, of[0].z, of[0].w, of[1].x, of[1].y};
      reached = blocks_of(e, tile, limits.log2_alpha_min - kReachMargin);
      of[1].z = __uint_as_float(by_pair ? tile.list.first + static_cast<unsigned>(i) : item);
      of[1].w = __uint_as_float(item);
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) quarter(q, lane_index()) = of[q];
    }
    Reached result{{}, 0};
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
      result.blocks[k] = __ballot_sync(kWholeWarp, (reached >> k & 1u) != 0);
      result.any |= result.blocks[k];
    }
    __syncwarp();
    return result;
  }
  __device__ void done() { __syncwarp(); }

 private:
  static __device__ float within(float value, float low, float high) { return ::fminf(::fmaxf(value, low), high); }

  // The blocks of pixels in which an ellipse may exceed `limit`, as bits: best_log2_alpha, with terms shared between
  // blocks. The point where the ellipse is closest to an edge need not be exact.
  static __device__ unsigned blocks_of(const Ellipse<float>& e, const HalfTile& tile, float limit) {
    const float along_x = -(e.ux * e.uy) * quick_inverse(fma(e.uy, e.uy, e.vy * e.vy));
    const float along_y = -e.uy * quick_inverse(e.ux);
    const float right = e.x - (tile.x - static_cast<float>(lane_index() % kWarpWidth));
    const float bottom = e.y - (tile.y - static_cast<float>(lane_index() / kWarpWidth));
    unsigned reached = 0;
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
      const float x1 = right - static_cast<float>(k % 2 * kWarpWidth), x0 = x1 - (kWarpWidth - 1.0f);
      const float y1 = bottom - static_cast<float>(k / 2 * kWarpHeight), y0 = y1 - (kWarpHeight - 1.0f);
      const float dx = within(0.0f, x0, x1), dy = within(0.0f, y0, y1);
      const float beside = log2_alpha(e, dx, within(along_x * dx, y0, y1));
      const float above = log2_alpha(e, within(along_y * dy, x0, x1), dy);
      if (::fmaxf(beside, above) >= limit) reached |= 1u << k;
    }
    return reached;
  }
};

// A Gaussian of the group at the lane's pixels. Forward and backward evaluate the expression of log2_alpha, with shared
// terms evaluated once.
struct AtPixels {
  Ellipse<float> e;
  float dx[2], dy[2];

  __device__ AtPixels(const float4& first, const float4& second, const HalfTile& tile)
      : e{first.x, first.y, first.z, first.w, second.x, second.y},
        dx{e.x - tile.x, e.x - (tile.x + kWarpWidth)},
        dy{e.y - tile.y, e.y - (tile.y + kWarpHeight)} {}
  __device__ float power(int k) const { return log2_alpha(e, dx[k % 2], dy[k / 2]); }
};

// Loads kFeatures features of Gaussian `i` of the group, from number `first` on, from its record or the separate array.
template <int kFeatures, bool kApart, class Group>
__device__ inline void load_features(const CudaRecords& records, Group& group, int i, unsigned item, int first,
                                     float (&to)[kFeatures]) {
  if constexpr (kApart) {
    load_features(records, item, first, to);
  } else {
#pragma unroll
    for (int c = 0; c < kFeatures; c += 4) {
      const float4 four = group.quarter(record::kFeatures / 4 + c / 4, i);
      const float of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4 && c + j < kFeatures; ++j) to[c + j] = of[j];
    }
  }
}

// Calls run(features, apart), compile-time constants: the number of features that pixels keep at a time, and whether
// they are in the separate array, with one pass of the warp through its list per chunk of features.
template <class Run>
void with_half_features(int total, const Run& run) {
  if (total <= 3) return run(std::integral_constant<int, 3>(), std::false_type());
  if (total <= kFewFeatures) return run(std::integral_constant<int, kFewFeatures>(), std::false_type());
  if (total <= kInlineFeatures) return run(std::integral_constant<int, kInlineFeatures>(), std::false_type());
  run(std::integral_constant<int, kInlineFeatures>(), std::true_type());
}

}  // namespace lumigrad::gaussians
