// The Gaussians that a tile loads, and the test whether one overlaps a warp's pixels.
#pragma once

#include "common/cuda/tile_batch.cuh"
#include "gaussians/cuda/records.cuh"

namespace lumigrad::gaussians {

// When a Gaussian contributes to a pixel, and when the pixel ends.
struct Limits {
  float log2_alpha_min, alpha_max;
  float differentiable_to;  // A clamped alpha has no gradient, except in the depth fork (spec section 6, item 4).
  float ends_below;         // Transmittance. Inria's pixels end below the configured limit, gsplat's also at the limit.

  LG_INLINE explicit Limits(const Settings& s)
      : log2_alpha_min(log2_positive(s.alpha_min)),
        alpha_max(s.alpha_max),
        differentiable_to(s.fork_gradients ? INFINITY : s.alpha_max),
        ends_below(s.inria ? s.transmittance_min : from_bits(bits(s.transmittance_min) + 1)) {}
};

// The position of a pixel's centre, and its index in the images.
struct PixelPlace {
  float x, y;
  int64_t index;

  __device__ PixelPlace(const CudaCall& call, const TilePixel& place)
      : x(static_cast<float>(place.x) + call.settings.pixel_center),
        y(static_cast<float>(place.y) + call.settings.pixel_center),
        index((static_cast<int64_t>(place.view) * call.height + place.y) * call.width + place.x) {}
};

__device__ inline bool reaches_tile(const PixelRange& r, const TileList& list) {
  return r.x0 < list.left + kDeviceTile && r.x1 > list.left && r.y0 < list.top + kDeviceTile && r.y1 > list.top;
}

struct GaussianBatch {
  TileBatch<kRecordQuarters> batch;
  SharedArray<int, kTilePixels> places;

  // Fetches, in order, those of the list's next Gaussians from `position` on that reach the tile; returns their
  // number. All threads of the block must call it together, and again only after a barrier.
  __device__ int fetch(const TileLists& lists, const TileList& list, const CudaRecords& records, int position) {
    const auto reaches = [&](unsigned item) { return reaches_tile(records.range(item), list); };
    const auto keep = [&](int place, unsigned, unsigned, int i) { places[place] = i; };
    const auto of_entry = [](unsigned item) { return item; };
    return batch.fetch(lists, list, records.records, position, of_entry, reaches, keep);
  }

  __device__ const float* record(int i) { return batch.record(i); }
  __device__ unsigned item(int i) { return batch.items[i]; }
  // The position of Gaussian `i` in the tile's list.
  __device__ int place(int i) { return places[i]; }

  // Bits of the 32 Gaussians from `begin` on that overlap the warp's pixels. The whole warp must call it; `pixel`
  // is the lane's own.
  __device__ unsigned reaching(int begin, int count, const PixelPlace& pixel, const Limits& limits) {
    const int lane = lane_index(), i = begin + lane;
    bool reached = false;
    if (i < count) {
      const Ellipse<float> e = ellipse_of<float>(record(i));
      const float x1 = e.x - (pixel.x - static_cast<float>(lane % kWarpWidth));
      const float y1 = e.y - (pixel.y - static_cast<float>(lane / kWarpWidth));
      const float x0 = x1 - (kWarpWidth - 1.0f), y0 = y1 - (kWarpHeight - 1.0f);
      reached = best_log2_alpha(e, slopes_of(e), x0, x1, y0, y1) >= limits.log2_alpha_min - kReachMargin;
    }
    return __ballot_sync(kWholeWarp, reached);
  }
};

// Loads kFeatures features, a multiple of four, of an item from the separate array, from number `first` on.
template <int kFeatures>
__device__ inline void load_features(const CudaRecords& records, unsigned item, int first, float (&to)[kFeatures]) {
  const float* from = records.more_features + item * static_cast<int64_t>(records.stride) + first;
#pragma unroll
  for (int c = 0; c < kFeatures; c += 4) {
    const bool there = first + c < records.stride;
    const float4 four = there ? *reinterpret_cast<const float4*>(from + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    to[c] = four.x;
    to[c + 1] = four.y;
    to[c + 2] = four.z;
    to[c + 3] = four.w;
  }
}

}  // namespace lumigrad::gaussians
