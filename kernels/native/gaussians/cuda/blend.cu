// Blends the images on the device, with a warp for each half of a tile, nearest first (spec section 1.7).
#include "common/cuda/launch.h"
#include "gaussians/cuda/drawing.cuh"
#include "gaussians/cuda/half_tile.cuh"
#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {
namespace {

// Sums of a lane's pixels. `kCounts`: whether to count contributors.
template <int kFeatures, bool kCounts>
struct LanePixels {
  float transmittance[kLanePixels], sums[kLanePixels][kFeatures], segment[kLanePixels][kFeatures];
  float least[kLanePixels];  // log2 of the smallest alpha that is drawn; infinite if the pixel has ended.
  int end[kLanePixels];      // Position from which the list has nothing for the pixel.
  int contributors[kCounts ? kLanePixels : 1];

  __device__ LanePixels(const HalfTile& tile, const Limits& limits) {
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
      transmittance[k] = 1.0f;
#pragma unroll
      for (int c = 0; c < kFeatures; ++c) sums[k][c] = segment[k][c] = 0.0f;
      least[k] = tile.on_film(k) ? limits.log2_alpha_min : INFINITY;
      end[k] = tile.list.length;
      if constexpr (kCounts) contributors[k] = 0;
    }
  }
  __device__ bool any_active() const {
    bool any = false;
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) any |= least[k] < INFINITY;
    return __any_sync(kWholeWarp, any) != 0;
  }

  // Adds the Gaussian at `position` in the list to pixel k, without a branch.
  template <bool kSegments>
  __device__ void add(int k, float power, const float (&features)[kFeatures], int position, const Limits& limits) {
    const bool counts = power >= least[k];
    const float alpha = counts ? ::fminf(exp2_bounded(power), limits.alpha_max) : 0.0f;
    const float next = fma(-alpha, transmittance[k], transmittance[k]);
    const bool ends = next < limits.ends_below;
    const float weight = ends ? 0.0f : alpha * transmittance[k];
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) {
      sums[k][c] = fma(weight, features[c], sums[k][c]);
      if constexpr (kSegments) segment[k][c] = fma(weight, features[c], segment[k][c]);
    }
    transmittance[k] = ends ? transmittance[k] : next;
    least[k] = ends ? INFINITY : least[k];
    end[k] = ends ? position : end[k];
    if constexpr (kCounts) contributors[k] += counts && !ends ? 1 : 0;
  }

  // Stores the sums of the segment that ends before `position`, and begins the next segment.
  __device__ void finish_segment(const Segments& to, const TileList& list, unsigned half, int position) {
    const int number = (position - 1) / kSegment, place = to.place(list.first, number);
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
#pragma unroll
      for (int c = 0; c < kFeatures; ++c) {
        if (number > 0 && c + 1 < to.fields) to.value(place, half, c + 1, k) = segment[k][c];
        segment[k][c] = 0.0f;
      }
    }
  }
  __device__ void begin_segment(const Segments& to, const TileList& list, unsigned tile, unsigned half, int position) {
    const int place = to.place(list.first, position / kSegment);
    if (lane_index() == 0) to.tiles[place] = tile;
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) to.value(place, half, 0, k) = transmittance[k];
  }
};

template <int kFeatures, bool kApart>
struct Blending {
  const CudaRecords& records;
  const TileLists& lists;
  const Segments& segments;
  const Limits& limits;
  const HalfTile& tile;
  HalfGroup<kApart ? 2 : record::kFeatures / 4 + (kFeatures + 3) / 4>& group;
  unsigned tile_number, half;
  int first;  // The round's first feature.

  // Blends the list. `kSegments`: also stores what the backward pass of its segments needs.
  template <bool kSegments, class Pixels>
  __device__ void run(Pixels& pixels) {
    int position = 0;
    for (; position < tile.list.length; position += kWarp) {
      if (kSegments && position > 0 && position % kSegment == 0) {
        pixels.finish_segment(segments, tile.list, half, position);
        pixels.begin_segment(segments, tile.list, tile_number, half, position);
      }
      const Reached reached = group.load(tile, lists, records, limits, position, tile.list.length, false);
      for (unsigned rest = reached.any; rest != 0; rest &= rest - 1) {
        const int i = __ffs(static_cast<int>(rest)) - 1;
        const AtPixels at(group.quarter(0, i), group.quarter(1, i), tile);
        float features[kFeatures];
        load_features<kFeatures, kApart>(records, group, i, group.item(i), first, features);
#pragma unroll
        for (int k = 0; k < kLanePixels; ++k) {
          if ((reached.blocks[k] >> i & 1u) == 0) continue;
          pixels.template add<kSegments>(k, at.power(k), features, position + i, limits);
        }
      }
      group.done();
      if (!pixels.any_active()) break;
    }
    if (kSegments) pixels.finish_segment(segments, tile.list, half, ::min(position, tile.list.length - 1) + 1);
  }
};

template <int kFeatures, bool kApart>
__global__ void __launch_bounds__(kHalfThreads, resident_blocks(kFeatures))
    draw_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                const __grid_constant__ TileLists lists, const __grid_constant__ Segments segments,
                const __grid_constant__ Limits limits, const __grid_constant__ Outputs outputs, int* lasts) {
  constexpr bool kCounts = kFeatures > kFewFeatures;
  __shared__ HalfGroup<kApart ? 2 : record::kFeatures / 4 + (kFeatures + 3) / 4> group;
  const unsigned number = warp_number(), half = number % 2;
  if (number / 2 >= static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y)) return;
  const HalfTile tile(call, lists, number / 2, half);
  Blending<kFeatures, kApart> blending{records, lists, segments, limits, tile, group, number / 2, half, 0};
  const int total = kApart ? records.features.total() : 1;
  for (; blending.first < total; blending.first += kFeatures) {
    LanePixels<kFeatures, kCounts> pixels(tile, limits);
    bool in_segments = false;
    if constexpr (!kApart) {
      in_segments = segments.places > 0 && tile.list.entries != nullptr && tile.list.length > kSegment;
      if (in_segments) blending.template run<true>(pixels);
    }
    if (!in_segments) blending.template run<false>(pixels);
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
      if (!tile.on_film(k)) continue;
      Pixel<kFeatures> pixel;
      pixel.transmittance = pixels.transmittance[k];
#pragma unroll
      for (int c = 0; c < kFeatures; ++c) pixel.sums[c] = pixels.sums[k][c];
      pixel.last = pixels.end[k];
      if constexpr (kCounts) pixel.contributors = pixels.contributors[k];
      write_pixel(call, records.features, outputs, lasts, tile.view, tile.index(k), blending.first, pixel);
    }
  }
}

}  // namespace

void cuda_draw(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const Segments& segments,
               const Outputs& outputs, int* lasts, cudaStream_t stream) {
  const std::size_t halves = std::size_t{2} * lists.views * lists.tiles_x * lists.tiles_y;
  // Only kernels for many features count contributors.
  const int total = ::max(records.features.total(), outputs.contributors != nullptr ? kInlineFeatures : 0);
  with_half_features(total, [&](auto features, auto apart) {
    launch(&draw_kernel<decltype(features)::value, decltype(apart)::value>, blocks_of_halves(halves), kHalfThreads, 0,
           stream, call, records, lists, segments, Limits(call.settings), outputs, lasts);
  });
}

}  // namespace lumigrad::gaussians
