// Differentiates the blending of surfels, from the last Gaussian of a tile to the first, as blend_backward.cu does for
// ellipses (sensors spec section 7).
#include "common/cuda/launch.h"
#include "gaussians/cuda/row_sums.cuh"
#include "gaussians/cuda/surfels/pixel.cuh"
#include "gaussians/cuda/surfels/stages.h"
#include "gaussians/math/surfel_project.h"

namespace lumigrad::gaussians {
namespace {

using SurfelPixelUpstream = PixelUpstreamOf<true>;

static_assert(surfel_row::kUsed <= kMoreDepth && kMoreDepth < kSurfelFields);

// The upstream gradients of the images that follow from a pixel's depths, and sums of depths over the surfels in front
// of the last visited one.
struct DepthsUpstream {
  float v_median = 0.0f, v_distortion = 0.0f;
  float alpha = 0.0f, depth = 0.0f, in_front = 0.0f;
  int median = -1;  // The list position of the median surfel.

  __device__ DepthsUpstream(const SurfelPixelUpstream& pixel, const int* medians) {
    const Upstream& up = pixel.up;
    alpha = 1.0f - pixel.transmittance;
    depth = value_at(up.depth, pixel.index);
    v_distortion = value_at(up.d_distortion, pixel.index);
    if (up.d_median_depth == nullptr) return;
    v_median = up.d_median_depth[pixel.index];
    median = medians[pixel.index] - 1;
  }
};

// The constants of a block and of a thread's pixel.
template <int kFeatures>
struct Tile {
  const CudaRecords& records;
  const CudaRows& rows;
  const Limits& limits;
  const PixelPlace& at;
  const TilePixel& place;
  const SurfelPixelUpstream& upstream;
  GaussianBatch& batch;
  RowSums<kSurfelFields, kFeatures>& sums;
  int last;   // The pixel visits the list positions below this one.
  int first;  // The round's first feature.

  __device__ bool needs_whole() const { return rows.needs_abs && first == 0 && records.features.total() > kFeatures; }
};

// Adds the gradient of a surfel's weight through depths to `toward`; returns the gradient of its depth.
__device__ inline float visit_depths(float z, float full, float alpha_max, int position, float transmittance,
                                     DepthsUpstream& up, float& toward) {
  // Same steps as visit_backward.
  const float alpha = min(full, alpha_max), before = transmittance * quick_inverse(1.0f - alpha);
  const float weight = alpha * before;
  up.in_front = fma(-weight, z, up.in_front);
  const auto slope = distortion_slope(weight, z, before, up.in_front, up.alpha, up.depth);
  toward = fma(up.v_distortion, slope.weight, toward);
  return fma(up.v_distortion, slope.depth, position == up.median ? up.v_median : 0.0f);
}

// Differentiates Gaussian `i` of the batch in one pixel; returns whether it contributed.
template <int kFeatures, bool kDepths>
__device__ inline bool visit(const Tile<kFeatures>& tile, int i, DepthsUpstream& up, PixelRound<kFeatures>& pixel,
                             SurfelRow<float>& row, float& more_depth, float& weight) {
  const float* record = tile.batch.record(i);
  const SurfelHit hit(record, tile.at, tile.place, tile.limits);
  if (!hit.counts) return false;
  float features[kFeatures], toward = 0.0f;
  load_features(tile.records, tile.batch.item(i), tile.first, features);
#pragma unroll
  for (int c = 0; c < kFeatures; ++c) toward = fma(features[c], pixel.gradient[c], toward);
  const float full = exp2_bounded(hit.at.power), alpha_max = tile.limits.alpha_max;
  const float* all = tile.records.features_of(tile.batch.item(i));
  // The first round includes the terms that do not depend on features.
  if (kDepths && tile.first == 0) {
    more_depth = visit_depths(all[tile.records.features.colors], full, alpha_max, tile.batch.place(i),
                              pixel.state.transmittance, up, toward);
  }
  const auto v = visit_backward(full, min(full, alpha_max), alpha_max, toward, pixel.state);
  weight = v.weight;
  add_to_row(hit.at, v.v_sigma, row);
  if (!tile.rows.needs_abs || tile.first > 0) return true;
  float v_sigma = v.v_sigma;
  if (tile.needs_whole()) {
    for (int f = kFeatures; f < tile.records.features.total(); ++f) {
      toward = fma(all[f], tile.upstream.gradient(f), toward);
    }
    v_sigma = visit_backward(full, min(full, alpha_max), alpha_max, toward, pixel.whole).v_sigma;
  }
  add_absolute(record, {record[kTilt], record[kTilt + 1]}, hit.at, v_sigma, row.abs_x, row.abs_y);
  return true;
}

// Sums the gradients of the warp's pixels for up to 32 Gaussians of the batch from number `begin` on, the farthest
// first.
template <int kFeatures, bool kDepths>
__device__ inline void visit_group(const Tile<kFeatures>& tile, int begin, int count, DepthsUpstream& up,
                                   PixelRound<kFeatures>& pixel) {
  unsigned filled = 0;
  for (unsigned rest = reaching(tile.batch, begin, count, tile.place); rest != 0;) {
    const int slot = kWarp - 1 - __clz(static_cast<int>(rest)), i = begin + slot;
    rest &= ~(1u << slot);
    SurfelRow<float> row{};
    float weight = 0.0f, more_depth = 0.0f;
    bool took_part = false;
    if (tile.batch.place(i) < tile.last) {
      took_part = visit<kFeatures, kDepths>(tile, i, up, pixel, row, more_depth, weight);
    }
    if (__ballot_sync(kWholeWarp, took_part) == 0) continue;
    float fields[kSurfelFields] = {row.one, row.u,  row.v,      row.ux,     row.uy,    row.vx,    row.vy,     row.n,
                                   row.nx,  row.ny, row.disc_x, row.disc_y, row.abs_x, row.abs_y, more_depth, 0.0f};
    float shares[RowSums<kSurfelFields, kFeatures>::kFeaturesRoom] = {};
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) shares[c] = weight * pixel.gradient[c];
    tile.sums.put(slot, 0, fields);
    tile.sums.put(slot, kSurfelFields, shares);
    filled |= 1u << slot;
  }
  tile.sums.mark(begin, filled);
}

template <int kFeatures, bool kDepths>
__global__ void __launch_bounds__(kTilePixels, 2)
    surfel_pixels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                         const __grid_constant__ TileLists lists, const __grid_constant__ Upstream upstream,
                         const int* lasts, const int* medians, const __grid_constant__ CudaRows rows) {
  __shared__ GaussianBatch batch;
  __shared__ RowSums<kSurfelFields, kFeatures> sums;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const PixelPlace at(call, place);
  const Limits limits(call.settings);
  // Threads outside the image read the first pixel's values and visit no Gaussian.
  const SurfelPixelUpstream up(call, records.features, upstream, place.view, place.on_film ? at.index : 0);
  const DepthsUpstream of_depths(up, medians);
  Tile<kFeatures> tile{records, rows, limits, at, place, up, batch, sums, place.on_film ? lasts[at.index] : 0, 0};
  TileList list(lists);
  list.length = block_max(tile.last);
  for (; list.length > 0 && (tile.first == 0 || tile.first < records.features.total()); tile.first += kFeatures) {
    PixelRound<kFeatures> pixel(up, tile.first, tile.needs_whole());
    DepthsUpstream depths = of_depths;
    depths.in_front = depths.depth;
    for (int position = (list.length - 1) / kTilePixels * kTilePixels; position >= 0; position -= kTilePixels) {
      const int count = batch.fetch(lists, list, records, position);
      for (int begin = (count - 1) / kWarp * kWarp; count > 0 && begin >= 0; begin -= kWarp) {
        visit_group<kFeatures, kDepths>(tile, begin, count, depths, pixel);
        __syncthreads();
        add_to_rows(call, records.places, rows, list, batch, sums, tile.first, begin, count);
        __syncthreads();
      }
      // Needed even if nothing was fetched, since the next batch overwrites this one.
      __syncthreads();
    }
  }
}

}  // namespace

void cuda_blend_surfels_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                                 const Upstream& upstream, const int* lasts, const int* medians, const CudaRows& rows,
                                 cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  const bool of_depths = upstream.d_median_depth != nullptr || upstream.d_distortion != nullptr;
  with_surfel_features(records.features, of_depths, [&](auto features, auto depths) {
    launch(surfel_pixels_kernel<decltype(features)::value, decltype(depths)::value>, tiles, kTilePixels, 0, stream,
           call, records, lists, upstream, lasts, medians, rows);
  });
}

}  // namespace lumigrad::gaussians
