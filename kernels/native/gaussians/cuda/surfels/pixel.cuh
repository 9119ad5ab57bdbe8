// A surfel of a batch at a pixel.
#pragma once

#include "gaussians/cuda/pixel.cuh"
#include "gaussians/math/surfel.h"

namespace lumigrad::gaussians {

// The features that a pixel keeps in registers; if there are more, the tile goes through its list once per chunk.
inline constexpr int kFewSurfelFeatures = 4, kManySurfelFeatures = 8;

struct SurfelHit {
  SurfelPixel<float> at;
  bool counts;

  __device__ SurfelHit(const float* record, const PixelPlace& pixel, const TilePixel& place, const Limits& limits)
      : at(surfel_at(record, pixel.x, pixel.y)) {
    counts = at.power >= limits.log2_alpha_min && at.exists && range_of(record + kRangeAtEnd).holds(place.x, place.y);
  }
};

// Bits of the 32 surfels from `begin` on that may reach the warp's pixels. The whole warp must call it.
__device__ inline unsigned reaching(GaussianBatch& batch, int begin, int count, const TilePixel& place) {
  const int lane = lane_index(), i = begin + lane;
  bool reached = false;
  if (i < count) {
    const int x = place.x - lane % kWarpWidth, y = place.y - lane / kWarpWidth;
    const PixelRange r = range_of(batch.record(i) + kRangeAtEnd);
    reached = r.x0 < x + kWarpWidth && r.x1 > x && r.y0 < y + kWarpHeight && r.y1 > y;
  }
  return __ballot_sync(kWholeWarp, reached);
}

// Calls run(features, depths), compile-time constants: how many features a pixel keeps at a time, and `of_depths`.
template <class Run>
void with_surfel_features(const Features& features, bool of_depths, const Run& run) {
  const auto with = [&](auto count) {
    if (of_depths) {
      run(count, std::true_type());
    } else {
      run(count, std::false_type());
    }
  };
  if (features.total() <= kFewSurfelFeatures) return with(std::integral_constant<int, kFewSurfelFeatures>());
  with(std::integral_constant<int, kManySurfelFeatures>());
}

}  // namespace lumigrad::gaussians
