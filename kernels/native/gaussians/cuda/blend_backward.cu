// Differentiates the blending on the device: a tile traverses its list from the last Gaussian to the first, and sums
// the gradients of its pixels for each (spec section 3.1). Warps sum with shuffles, and tiles in shared memory, so that
// a tile adds once to a Gaussian's row; for deterministic sums it writes a separate row instead.
#include "common/cuda/launch.h"
#include "gaussians/cuda/pixel.cuh"
#include "gaussians/cuda/stages.h"
#include "gaussians/math/blend.h"

namespace lumigrad::gaussians {
namespace {

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// Each warp's sums for the 32 Gaussians that the tile processes at a time.
template <int kFeatures>
struct RowSums {
  static constexpr int kFeaturesRoom = power_of_two(kFeatures);
  static constexpr int kRow = gradient_row::kFeatures + kFeaturesRoom;
  SharedArray<float, kTileWarps * kWarp * kRow> sums;
  SharedArray<unsigned, kTileWarps> filled;  // The Gaussians that have sums, as bits.

  template <int kCount>
  __device__ void put(int slot, int field, float (&values)[kCount]) {
    const float total = warp_sums(values);
    constexpr int kShare = kWarp / kCount;
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
    if (lane % kShare == 0) sums[(warp * kWarp + slot) * kRow + field + lane / kShare] = total;
  }

  // The tile's sum, in the order of the warps; false if no warp has one.
  __device__ bool total(int slot, int field, float& sum) {
    bool any = false;
    sum = 0.0f;
    for (int warp = 0; warp < kTileWarps; ++warp) {
      if ((filled[warp] >> slot & 1u) == 0) continue;
      any = true;
      sum += sums[(warp * kWarp + slot) * kRow + field];
    }
    return any;
  }
};

__device__ inline float value_at(const float* image, int64_t index) { return image != nullptr ? image[index] : 0.0f; }

// The upstream gradients of a pixel.
struct PixelUpstream {
  const Upstream& up;
  Features features;
  const float* background;  // [D] or null: 0
  int64_t index;
  float transmittance;       // The final one.
  float depth;               // Gradient of the accumulated depth.
  float transmittance_only;  // Gradient of the final transmittance, without the background's part.

  __device__ PixelUpstream(const CudaCall& call, const Features& blended, const Upstream& upstream, int view,
                           int64_t pixel)
      : up(upstream), features(blended), background(call.scene.background), index(pixel) {
    if (background != nullptr) background += view * static_cast<int64_t>(features.colors);
    transmittance = up.transmittance[index];
    depth = value_at(up.d_depth, index);
    transmittance_only = value_at(up.d_transmittance, index) - value_at(up.d_alpha, index);
    if (up.d_expected_depth == nullptr) return;
    const auto e = expected_depth_backward(up.depth[index], transmittance, up.d_expected_depth[index]);
    depth += e.depth;
    transmittance_only += e.transmittance;
  }
  __device__ float gradient(int f) const {
    const int channels = features.colors;
    if (f < channels) return up.d_color != nullptr ? up.d_color[index * channels + f] : 0.0f;
    if (f == channels && features.depth) return depth;
    return f < features.total() ? value_at(up.d_inverse_depth, index) : 0.0f;
  }
  __device__ float toward_background(int f) const {
    return background != nullptr && f < features.colors ? gradient(f) * background[f] : 0.0f;
  }
};

// The state of a pixel in the round that begins at feature `first`. Gradients are linear in those of the features, so
// that rounds add up; the first round includes the gradient of the final transmittance. Absolute values do not add up:
// `whole` takes all features into account in the first round.
template <int kFeatures>
struct PixelRound {
  float gradient[kFeatures];
  PixelBackward<float> state, whole;

  __device__ PixelRound(const PixelUpstream& up, int first, bool needs_whole) {
    float behind = first == 0 ? up.transmittance_only : 0.0f, rest = 0.0f;
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) {
      gradient[c] = up.gradient(first + c);
      behind += up.toward_background(first + c);
    }
    for (int f = kFeatures; needs_whole && f < up.features.total(); ++f) rest += up.toward_background(f);
    state = {up.transmittance, up.transmittance * behind};
    whole = {up.transmittance, up.transmittance * (behind + rest)};
  }
};

// The constants of a block, and those of a thread's pixel.
template <int kFeatures>
struct Tile {
  const CudaCall& call;
  const CudaRecords& records;
  const TileLists& lists;
  const CudaRows& rows;
  const Limits& limits;
  const PixelPlace& at;
  const PixelUpstream& upstream;
  GaussianBatch& batch;
  RowSums<kFeatures>& sums;
  TileList list;
  int last;   // The pixel visits the positions in the list below this one.
  int first;  // The round's first feature.

  __device__ bool needs_whole() const { return kFeatures > kInlineFeatures && rows.needs_abs && first == 0; }
};

// The gradient of the exponent, all features taken into account.
template <int kFeatures>
__device__ inline float whole_gradient(const Tile<kFeatures>& tile, int i, float full, float toward, bool fork,
                                       PixelRound<kFeatures>& pixel) {
  const float* features = tile.records.features_of(tile.batch.item(i));
  for (int f = kFeatures; f < tile.records.features.total(); ++f) {
    toward = fma(features[f], tile.upstream.gradient(f), toward);
  }
  return visit_backward(full, tile.limits.alpha_max, fork, toward, pixel.whole).v_sigma;
}

// Differentiates Gaussian `i` of the batch in one pixel; returns whether it contributed. `geometry` is laid out as
// gradient_row.
template <int kFeatures>
__device__ inline bool visit(const Tile<kFeatures>& tile, int i, PixelRound<kFeatures>& pixel,
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
template <int kFeatures>
__device__ inline void visit_group(const Tile<kFeatures>& tile, int begin, int count, PixelRound<kFeatures>& pixel) {
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
    float shares[RowSums<kFeatures>::kFeaturesRoom] = {};
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) shares[c] = weight * pixel.gradient[c];
    tile.sums.put(slot, 0, geometry);
    tile.sums.put(slot, gradient_row::kFeatures, shares);
    filled |= 1u << slot;
  }
  if (lane_index() == 0) tile.sums.filled[static_cast<int>(threadIdx.x) / kWarp] = filled;
}

// Adds the tile's sums to the rows of its Gaussians, or writes them to the rows of its pairs. The threads of the block
// share the work.
template <int kFeatures>
__device__ inline void hand_over(const Tile<kFeatures>& tile, int begin, int count) {
  constexpr int kRow = RowSums<kFeatures>::kRow;
  const CudaRows& rows = tile.rows;
  for (int k = static_cast<int>(threadIdx.x); k < ::min(kWarp, count - begin) * kRow; k += kTilePixels) {
    const int slot = k / kRow, field = k % kRow, i = begin + slot;
    const bool is_feature = field >= gradient_row::kFeatures;
    const int column = is_feature ? field + tile.first : field;
    float sum;
    if (column >= rows.width || !tile.sums.total(slot, field, sum)) continue;
    const unsigned item = tile.batch.item(i);
    if (k % kRow == 0) {
      const auto n = static_cast<unsigned>(tile.call.scene.count);
      rows.touched[tile.call.view[item / n].scene * static_cast<int64_t>(n) + item % n] = 1;
    }
    if (rows.pair_rows != nullptr) {
      const int64_t pair = static_cast<int64_t>(tile.list.first) + tile.batch.place(i);
      float* to = rows.pair_rows + pair * rows.width + column;
      *to = tile.first > 0 && !is_feature ? *to + sum : sum;
    } else if (sum != 0.0f) {
      atomicAdd(rows.rows + item * static_cast<int64_t>(rows.width) + column, sum);
    }
  }
}

// Returns the largest value of the block to every thread.
__device__ inline int block_max(int value) {
  __shared__ SharedArray<int, kTileWarps> largest;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = ::max(value, __shfl_xor_sync(kWholeWarp, value, offset));
  }
  if (lane_index() == 0) largest[static_cast<int>(threadIdx.x) / kWarp] = value;
  __syncthreads();
  int result = largest[0];
  for (int warp = 1; warp < kTileWarps; ++warp) result = ::max(result, largest[warp]);
  return result;
}

template <int kFeatures>
__global__ void __launch_bounds__(kTilePixels, resident_blocks(kFeatures))
    pixels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                  const __grid_constant__ TileLists lists, const __grid_constant__ Upstream upstream, const int* lasts,
                  const __grid_constant__ CudaRows rows) {
  __shared__ GaussianBatch batch;
  __shared__ RowSums<kFeatures> sums;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const PixelPlace at(call, place);
  const Limits limits(call.settings);
  // Threads outside the image read its first pixel and visit no Gaussian.
  const PixelUpstream up(call, records.features, upstream, place.view, place.on_film ? at.index : 0);
  Tile<kFeatures> tile{call, records, lists, rows, limits, at, up, batch, sums, TileList(lists), 0, 0};
  if (place.on_film) tile.last = lasts[at.index];
  tile.list.length = block_max(tile.last);
  if (tile.list.length == 0) return;
  const int total = kFeatures <= kInlineFeatures ? 1 : records.features.total();
  for (; tile.first < total; tile.first += kFeatures) {
    PixelRound<kFeatures> pixel(up, tile.first, tile.needs_whole());
    for (int position = (tile.list.length - 1) / kTilePixels * kTilePixels; position >= 0; position -= kTilePixels) {
      const int count = batch.fetch(lists, tile.list, records, position);
      for (int begin = (count - 1) / kWarp * kWarp; count > 0 && begin >= 0; begin -= kWarp) {
        visit_group(tile, begin, count, pixel);
        __syncthreads();
        hand_over(tile, begin, count);
        __syncthreads();
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
    launch(pixels_kernel<decltype(features)::value>, tiles, kTilePixels, 0, stream, call, records, lists, upstream,
           lasts, rows);
  });
}

}  // namespace lumigrad::gaussians
