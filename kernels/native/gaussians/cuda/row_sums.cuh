// Sums over a tile's pixels for its Gaussians, and the upstream gradients of a pixel.
#pragma once

#include "common/cuda/tile_sums.cuh"
#include "gaussians/cuda/pixel.cuh"
#include "gaussians/cuda/stages.h"
#include "gaussians/math/blend.h"

namespace lumigrad::gaussians {

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// A row: kFields, then the features.
template <int kFieldsOf, int kFeatures>
struct RowSums : TileSums<kFieldsOf + power_of_two(kFeatures)> {
  static constexpr int kFields = kFieldsOf, kFeaturesRoom = power_of_two(kFeatures);
  static constexpr int kRow = kFields + kFeaturesRoom;
};

// Adds the tile's sums to the rows of its Gaussians, or writes them to the rows of its pairs, for at most 32 Gaussians
// of the batch from number `begin` on, in the round that begins at feature `first`. The threads of the block share the
// work.
template <class Sums>
__device__ inline void add_to_rows(const CudaCall& call, const CudaPlaces& places, const CudaRows& rows,
                                   const TileList& list, GaussianBatch& batch, Sums& sums, int first, int begin,
                                   int count) {
  constexpr int kRow = Sums::kRow, kFields = Sums::kFields;
  const int items = ::min(kWarp, count - begin), thread = static_cast<int>(threadIdx.x);
  if (thread < items && sums.any(thread)) rows.touch(call, places, batch.item(begin + thread));
#pragma unroll 1
  for (int k = thread; k < items * kRow; k += kTilePixels) {
    const int slot = k / kRow, field = k % kRow, i = begin + slot;
    const bool is_feature = field >= kFields;
    const int column = is_feature ? field + first : field;
    if (column >= rows.width || !sums.any(slot)) continue;
    const float sum = sums.total(slot, field);
    if (rows.pair_rows != nullptr) {
      const int64_t pair = static_cast<int64_t>(list.first) + batch.place(i);
      float* to = rows.pair_rows + pair * rows.width + column;
      *to = first > 0 && !is_feature ? *to + sum : sum;
    } else if (sum != 0.0f) {
      atomicAdd(rows.rows + batch.item(i) * static_cast<int64_t>(rows.width) + column, sum);
    }
  }
}

// Returns the largest value in the block to every thread.
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

__device__ inline float value_at(const float* image, int64_t index) { return image != nullptr ? image[index] : 0.0f; }

// The upstream gradients of a pixel. `kSurfels`: normals may follow the depth.
template <bool kSurfels>
struct PixelUpstreamOf {
  const Upstream& up;
  Features features;
  const float* background;  // [D] or null: 0
  int64_t index;
  float transmittance;       // The final transmittance.
  float depth;               // Gradient of the accumulated depth.
  float transmittance_only;  // Gradient of the final transmittance, without the background's part.

  __device__ PixelUpstreamOf(const CudaCall& call, const Features& blended, const Upstream& upstream, int view,
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
    if constexpr (kSurfels) {
      const int axis = f - channels - features.depth;
      return features.normals && axis < 3 && up.d_normals != nullptr ? up.d_normals[3 * index + axis] : 0.0f;
    }
    return f < features.total() ? value_at(up.d_inverse_depth, index) : 0.0f;
  }
  __device__ float toward_background(int f) const {
    return background != nullptr && f < features.colors ? gradient(f) * background[f] : 0.0f;
  }
};

using PixelUpstream = PixelUpstreamOf<false>;

// The state of a pixel in the round that begins at feature `first`. Gradients are linear in the features' gradients, so
// that rounds add up; the first round includes the gradient of the final transmittance. Absolute values do not add up,
// so `whole` takes all features into account in the first round.
template <int kFeatures>
struct PixelRound {
  float gradient[kFeatures];
  PixelBackward<float> state, whole;

  template <class Up>
  __device__ PixelRound(const Up& up, int first, bool needs_whole) {
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

}  // namespace lumigrad::gaussians
