// Differentiates the blending on the device: a tile traverses its list from the last Gaussian to the first, and sums
// the gradients of its pixels for each (spec section 3.1). Warps sum with shuffles, and tiles in shared memory, so that
// a tile adds once to a Gaussian's row; for deterministic sums it writes a separate row instead.
#include <type_traits>

#include "common/cuda/launch.h"
#include "gaussians/cuda/row_sums.cuh"

namespace lumigrad::gaussians {
namespace {

// `kOrdered`: the result does not depend on which warp comes first.
template <int kFeatures, bool kOrdered>
using Sums = std::conditional_t<kOrdered, RowSums<gradient_row::kFeatures, kFeatures, TileSums>,
                                RowSums<gradient_row::kFeatures, kFeatures, BatchSums>>;

// The constants of a block, and those of a thread's pixel.
template <int kFeatures, bool kOrdered>
struct Tile {
  const CudaCall& call;
  const CudaRecords& records;
  const TileLists& lists;
  const CudaRows& rows;
  const Limits& limits;
  const PixelPlace& at;
  const PixelUpstream& upstream;
  GaussianBatch& batch;
  Sums<kFeatures, kOrdered>& sums;
  TileList list;
  int last;   // The pixel visits the positions in the list below this one.
  int first;  // The round's first feature.

  __device__ bool needs_whole() const { return kFeatures > kInlineFeatures && rows.needs_abs && first == 0; }
};

// The gradient of the exponent, all features taken into account.
template <int kFeatures, bool kOrdered>
__device__ inline float whole_gradient(const Tile<kFeatures, kOrdered>& tile, int i, float full, float toward,
                                       bool fork, PixelRound<kFeatures>& pixel) {
  const float* features = tile.records.features_of(tile.batch.item(i));
  for (int f = kFeatures; f < tile.records.features.total(); ++f) {
    toward = fma(features[f], tile.upstream.gradient(f), toward);
  }
  return visit_backward(full, tile.limits.alpha_max, fork, toward, pixel.whole).v_sigma;
}

// Differentiates Gaussian `i` of the batch in one pixel; returns whether it contributed. `geometry` is laid out as
// gradient_row.
template <int kFeatures, bool kOrdered>
__device__ inline bool visit(const Tile<kFeatures, kOrdered>& tile, int i, PixelRound<kFeatures>& pixel,
                             float (&geometry)[gradient_row::kFeatures], float& weight) {
  using namespace gradient_row;
  const Ellipse<float> e = ellipse_of<float>(tile.batch.record(i));
  const float dx = e.x - tile.at.x, dy = e.y - tile.at.y, power = log2_alpha(e, dx, dy);
  if (!(power >= tile.limits.log2_alpha_min)) return false;
  float features[kFeatures], toward = 0.0f;
  load_features<kFeatures>(tile.records, tile.batch, i, tile.first, features);
#pragma unroll
  for (int c = 0; c < kFeatures; ++c) toward = fma(features[c], pixel.gradient[c], toward);
  const bool fork = tile.call.settings.fork_gradients != 0;
  const float full = exp2_bounded(power);
  const auto v = visit_backward(full, tile.limits.alpha_max, fork, toward, pixel.state);
  weight = v.weight;
  geometry[kOne] = v.v_sigma;
  geometry[kDx] = v.v_sigma * dx;
  geometry[kDy] = v.v_sigma * dy;
  geometry[kDxDx] = geometry[kDx] * dx;
  geometry[kDxDy] = geometry[kDx] * dy;
  geometry[kDyDy] = geometry[kDy] * dy;
  if (!tile.rows.needs_abs || tile.first > 0) return true;
  const float v_sigma = tile.needs_whole() ? whole_gradient(tile, i, full, toward, fork, pixel) : v.v_sigma;
  const auto slope = exponent_slope(e, dx, dy);
  geometry[kAbsX] = abs(v_sigma * slope.x);
  geometry[kAbsY] = abs(v_sigma * slope.y);
  return true;
}

// Sums the gradients of the warp's pixels for up to 32 Gaussians of the batch, from number `begin` on, the farthest
// first.
template <int kFeatures, bool kOrdered>
__device__ inline void visit_group(const Tile<kFeatures, kOrdered>& tile, int begin, int count,
                                   PixelRound<kFeatures>& pixel) {
  unsigned filled = 0;
  for (unsigned rest = tile.batch.reaching(begin, count, tile.at, tile.limits); rest != 0;) {
    const int slot = kWarp - 1 - __clz(static_cast<int>(rest)), i = begin + slot;
    rest &= ~(1u << slot);
    float geometry[gradient_row::kFeatures] = {}, weight = 0.0f;
    bool took_part = false;
    if (tile.batch.place(i) < tile.last) {
      took_part = visit(tile, i, pixel, geometry, weight);
    }
    if (__ballot_sync(kWholeWarp, took_part) == 0) continue;
    float shares[Sums<kFeatures, kOrdered>::kFeaturesRoom] = {};
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) shares[c] = weight * pixel.gradient[c];
    tile.sums.put(i, geometry, shares);
    filled |= 1u << slot;
  }
  tile.sums.mark(begin, filled);
}

template <int kFeatures, bool kOrdered>
__global__ void __launch_bounds__(kTilePixels, resident_blocks(kFeatures))
    pixels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                  const __grid_constant__ TileLists lists, const __grid_constant__ Upstream upstream, const int* lasts,
                  const __grid_constant__ CudaRows rows) {
  __shared__ GaussianBatch batch;
  __shared__ Sums<kFeatures, kOrdered> sums;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const PixelPlace at(call, place);
  const Limits limits(call.settings);
  // Threads outside the image read its first pixel and visit no Gaussian.
  const PixelUpstream up(call, records.features, upstream, place.view, place.on_film ? at.index : 0);
  Tile<kFeatures, kOrdered> tile{call, records, lists, rows, limits, at, up, batch, sums, TileList(lists), 0, 0};
  if (place.on_film) tile.last = lasts[at.index];
  tile.list.length = block_max(tile.last);
  if (tile.list.length == 0) return;
  const int total = kFeatures <= kInlineFeatures ? 1 : records.features.total();
  for (; tile.first < total; tile.first += kFeatures) {
    PixelRound<kFeatures> pixel(up, tile.first, tile.needs_whole());
    for (int position = (tile.list.length - 1) / kTilePixels * kTilePixels; position >= 0; position -= kTilePixels) {
      if constexpr (!kOrdered) sums.clear();
      const int count = batch.fetch(lists, tile.list, records, position);
      for (int begin = (count - 1) / kWarp * kWarp; count > 0 && begin >= 0; begin -= kWarp) {
        visit_group(tile, begin, count, pixel);
        if (begin % sums.kItems != 0) continue;
        __syncthreads();
        add_to_rows(call, rows, tile.list, batch, sums, tile.first, begin, count);
        if (begin > 0) __syncthreads();
      }
      // Needed even if nothing was fetched: the next batch overwrites this one.
      __syncthreads();
    }
  }
}

}  // namespace

void cuda_blend_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                         const Upstream& upstream, const int* lasts, const CudaRows& rows, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  with_features(records.features.total(), [&](auto features) {
    constexpr int kFeatures = decltype(features)::value;
    launch(rows.pair_rows != nullptr ? &pixels_kernel<kFeatures, true> : &pixels_kernel<kFeatures, false>, tiles,
           kTilePixels, 0, stream, call, records, lists, upstream, lasts, rows);
  });
}

}  // namespace lumigrad::gaussians
