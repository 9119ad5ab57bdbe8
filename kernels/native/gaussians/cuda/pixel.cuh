// The Gaussians that a tile loads, the test whether one overlaps a warp's pixels, and the condition that ends blending.
#pragma once

#include "common/cuda/tile_batch.cuh"
#include "gaussians/cuda/records.cuh"

namespace lumigrad::gaussians {

// Features that a pixel keeps in registers; if there are more, the tile goes through its list once for each chunk.
inline constexpr int kChunk = 16;

// Blocks that a multiprocessor should hold at once, which bounds a thread's registers: 48 for five blocks, 64 for four.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kMostBlocks = 4;  // Of this size, on Turing.
#else
inline constexpr int kMostBlocks = 5;
#endif
constexpr int resident_blocks(int features) {
  if (features <= 3) return kMostBlocks;
  return features <= 8 ? 4 : 2;
}

// When a Gaussian contributes to a pixel, and when the pixel ends.
struct Limits {
  float log2_alpha_min, alpha_max;
  float ends_below;  // Transmittance. In Inria's renderer pixels end below the limit that is set, in gsplat also at it.

  __device__ explicit Limits(const Settings& s)
      : log2_alpha_min(log2_positive(s.alpha_min)),
        alpha_max(s.alpha_max),
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

struct GaussianBatch {
  TileBatch<kRecordQuarters> batch;
  SharedArray<int, kTilePixels> places;

  // Fetches, in order, those of the list's next Gaussians, from `position` on, that reach the tile; returns their
  // number. All threads of the block must call it together, and again only after a barrier.
  __device__ int fetch(const TileLists& lists, const TileList& list, const CudaRecords& records, int position) {
    const auto reaches = [&](unsigned item) {
      const PixelRange r = records.range(item);
      return r.x0 < list.left + kDeviceTile && r.x1 > list.left && r.y0 < list.top + kDeviceTile && r.y1 > list.top;
    };
    const auto keep = [&](int place, unsigned, unsigned, int i) { places[place] = i; };
    const auto of_entry = [](unsigned item) { return item; };
    return batch.fetch(lists, list, records.records, position, of_entry, reaches, keep);
  }

  __device__ const float* record(int i) { return batch.record(i); }
  __device__ unsigned item(int i) { return batch.items[i]; }
  // Its position in the tile's list.
  __device__ int place(int i) { return places[i]; }

  // Those of the 32 Gaussians from `begin` on that overlap the warp's pixels, as bits. The whole warp must call it;
  // `pixel` is the lane's own.
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

// Loads kFeatures features, from number `first` on, of a Gaussian of the batch: from its record, or, a multiple of
// four, from the separate array of features (`kApart`).
template <int kFeatures, bool kApart = (kFeatures > kInlineFeatures)>
__device__ inline void load_features(const CudaRecords& records, GaussianBatch& batch, int i, int first,
                                     float (&to)[kFeatures]) {
  if constexpr (!kApart) {
    const float* from = batch.record(i) + record::kFeatures;
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) to[c] = from[c];
  } else {
    const float* from = records.more_features + batch.item(i) * static_cast<int64_t>(records.stride) + first;
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
}

// Calls run(std::integral_constant<int, n>()), n being the number of features that a pixel keeps at a time.
template <class Run>
void with_features(int total, const Run& run) {
  if (total <= 3) return run(std::integral_constant<int, 3>());
  if (total <= 4) return run(std::integral_constant<int, 4>());
  if (total <= kInlineFeatures) return run(std::integral_constant<int, kInlineFeatures>());
  run(std::integral_constant<int, kChunk>());
}

}  // namespace lumigrad::gaussians
