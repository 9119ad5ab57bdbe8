// Sums of the backward pass: a row of floats per sphere, and doubles per view.
#pragma once

#include "common/cuda/tile_sums.cuh"
#include "spheres/cuda/prepare.cuh"
#include "spheres/math/camera.h"

namespace lumigrad::spheres {

// A row: dL/d centre (3), radius, opacity (exact: an ExactRow), then the colours.
inline constexpr int kRowColor = 5;
// The columns that a tile sums at a time: the whole row with 3 channels, otherwise one of several rounds.
template <int kChannels>
inline constexpr int kRowColumns = kChannels == 3 ? 8 : 16;
// The values that a warp sums at a time.
inline constexpr int kWarpColumns = 8;

inline int cuda_row_width(int channels) { return kRowColor + channels; }

// The sums of a view after the camera's sums; the sums of the background's colours are last.
enum ViewSum {
  kContributors = kCameraSums,  // Compat: the divisor of the camera's sums.
  kBackgroundExponent,          // Exact: sum of dL/de0 (e0 - M)
  kBackgroundMaximum,           // Exact: sum of dL/de0 M
  kPairExponent,                // Exact: sum of dL/de (e - M)
  kUnused,                      // 0: a warp sums a power of two of values.
  kBackgroundColor,
};

// `channels`: the number of background channels with requested gradients, which are summed in whole groups.
inline int cuda_part_width(int channels) {
  return kBackgroundColor + (channels + kWarpColumns - 1) / kWarpColumns * kWarpColumns;
}

struct CudaRows {
  int width;
  float* rows;  // [N, width] of the view
  float*
      pair_rows;  // [pairs, width] if sums are deterministic: tiles write to it instead of adding to `rows`; else null
  int* touched;   // [N] of the view
  // [blocks, part_width] sums of the tiles of all views, then of blocks of spheres; null if not requested
  double* parts;
  int part_width;  // kBackgroundColor plus the background's colours, if requested

  __device__ bool wants_background() const { return part_width > kBackgroundColor; }
  __device__ double* part(unsigned block) const { return parts + static_cast<int64_t>(block) * part_width; }
};

// A view's part of the call.
struct DifferentiatedView {
  Camera camera;
  CudaPrepared prepared;
  Upstream upstream;
  CudaRows rows;
  const unsigned* ranks;  // [N] compat: the rank of each sphere
};

// The call, and its views in the device's memory.
struct BackwardCall {
  const std::vector<Camera>& cameras;
  const Settings& settings;
  const Scene& scene;
  const CudaPass& pass;
  const DifferentiatedView* views;
};

// A pixel's part in the row of a sphere: the fields before the colours, and the share, the factor from its upstream
// gradients to the gradients of the colours.
struct RowPart {
  float fields[kRowColor];
  float share;
};

// Each warp's sums for 32 spheres.
template <int kColumns>
struct SphereSums : TileSums<kColumns> {
  // Sums the lanes' parts into columns of the row from `first` on. `upstream(c)` is the gradient of colour c, and 0
  // beyond the colours. The whole warp must call it.
  template <class Up>
  __device__ void put_part(int slot, int first, int width, const RowPart& part, const Up& upstream) {
#pragma unroll 1
    for (int begin = 0; begin < kColumns && first + begin < width; begin += kWarpColumns) {
      const int color = first + begin - kRowColor;
      float values[kWarpColumns];
#pragma unroll
      for (int i = 0; i < kWarpColumns; ++i) {
        values[i] =
            i < kRowColor && color < 0 ? part.fields[i < kRowColor ? i : 0] : upstream.of(color + i) * part.share;
      }
      this->put(slot, begin, values);
    }
  }
  // Sets which spheres have sums of this warp, as bits.
  __device__ void close(unsigned filled) {
    if (lane_index() == 0) this->filled[static_cast<int>(threadIdx.x) / kWarp] = filled;
  }
};

// Adds the tile's sums to the rows of its spheres, from column `first` on, or writes them to the rows of its pairs,
// where the first slot has pair `pair`. `id_of` returns the sphere of each of the `count` slots. The threads of the
// block share the work.
template <int kColumns, class IdOf>
__device__ inline void add_to_rows(const CudaRows& to, TileSums<kColumns>& sums, int first, unsigned pair, int count,
                                   const IdOf& id_of) {
  for (int k = static_cast<int>(threadIdx.x); k < count * kColumns; k += kTilePixels) {
    const int slot = k / kColumns, column = first + k % kColumns;
    const float sum = column < to.width ? sums.total(slot, k % kColumns) : 0.0f;
    if (sum == 0.0f) continue;
    if (to.pair_rows != nullptr) {
      to.pair_rows[(static_cast<int64_t>(pair) + slot) * to.width + column] = sum;
    } else {
      atomicAdd(to.rows + static_cast<int64_t>(id_of(slot)) * to.width + column, sum);
    }
  }
}

// Sums V values over the block in a fixed order, and writes the sums.
template <int V>
__device__ inline void sum_block(float (&values)[V], double* to) {
  __shared__ SharedArray<float, kTileWarps * V> partial;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  const float total = warp_sums(values);
  __syncthreads();
  if (lane % (kWarp / V) == 0) partial[warp * V + lane / (kWarp / V)] = total;
  __syncthreads();
  if (threadIdx.x < V) {
    double sum = 0.0;
    for (int w = 0; w < kTileWarps; ++w) sum += static_cast<double>(partial[w * V + static_cast<int>(threadIdx.x)]);
    to[threadIdx.x] = sum;
  }
}

// Backward passes of the two semantics, with a block per tile. They fill rows, `touched` and parts, which must be
// cleared before.
void cuda_compat_pairs(const BackwardCall& call, cudaStream_t stream);
void cuda_exact_pairs(const BackwardCall& call, cudaStream_t stream);
// Writes the ranks of all items.
void cuda_ranks(const DeviceBuffer<unsigned>& order, unsigned* ranks, cudaStream_t stream);

// Compat, spec 7.2: the factor of a sphere's camera terms.
__device__ inline float camera_weight(float area, int touched) {
  return touched > 0 ? (area > 0.0f ? area : -area) * 1e-3f / static_cast<float>(touched) : 0.0f;
}

}  // namespace lumigrad::spheres
