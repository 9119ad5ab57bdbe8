// Differentiates the blending on the device. A warp visits a segment of the list of half a tile from the last Gaussian
// to the first (spec section 3.1), sums the gradients of its pixels for each Gaussian with shuffles, and adds them to
// the Gaussian's row or, for deterministic sums, to the row of the pair of a tile and a Gaussian: the sum of its two
// halves is the same in either order.
#include "common/cuda/launch.h"
#include "gaussians/cuda/half_tile.cuh"
#include "gaussians/cuda/row_sums.cuh"

namespace lumigrad::gaussians {
namespace {

// The work of a warp: a segment of the list of half a tile.
struct Part {
  unsigned tile, half;
  int segment;  // -1 if there is none.

  __device__ Part(unsigned number, unsigned tiles, const TileLists& lists, const Segments& segments) {
    tile = number / 2;
    half = number % 2;
    segment = 0;
    if (tile < tiles) return;
    // The first segments of all tiles come first, then the other places.
    const unsigned place = tile - tiles;
    tile = place < static_cast<unsigned>(segments.places) ? segments.tiles[place] : kNoTile;
    segment = tile == kNoTile ? -1 : static_cast<int>(place - lists.tile_starts[tile] / kSegment) + 1;
  }
};

// The state of a lane's pixels in the round that begins at feature `first`, from the end of a segment on, like
// PixelRound.
template <int kFeatures, bool kApart>
struct LanePixels {
  float transmittance[kLanePixels], behind[kLanePixels], gradient[kLanePixels][kFeatures];
  float whole[kApart ? kLanePixels : 1];  // `behind` with the gradients of all features.
  int end[kLanePixels];                   // The pixel visits the positions in the list below this one.

  // Returns one past the last position that a pixel of the warp visits.
  __device__ int find_ends(const HalfTile& tile, const int* lasts, int limit) {
    int most = 0;
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
      end[k] = tile.on_film(k) ? lasts[tile.index(k)] : 0;
      most = ::max(most, ::min(end[k], limit));
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) most = ::max(most, __shfl_xor_sync(kWholeWarp, most, offset));
    return most;
  }

  __device__ void start(const CudaCall& call, const Features& features, const Upstream& upstream, const HalfTile& tile,
                        int first) {
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
      // Pixels outside the image read the first pixel's values and visit no Gaussian.
      const PixelUpstream up(call, features, upstream, tile.view, tile.on_film(k) ? tile.index(k) : 0);
      float toward = first == 0 ? up.transmittance_only : 0.0f;
#pragma unroll
      for (int c = 0; c < kFeatures; ++c) {
        gradient[k][c] = up.gradient(first + c);
        toward += up.toward_background(first + c);
      }
      transmittance[k] = up.transmittance;
      behind[k] = up.transmittance * toward;
      if constexpr (kApart) {
        for (int f = kFeatures; first == 0 && f < features.total(); ++f) toward += up.toward_background(f);
        whole[k] = up.transmittance * toward;
      }
    }
  }

  // Moves the state from the end of each pixel's list to the end of an earlier segment.
  __device__ void move_to(const Segments& from, const Part& part, unsigned list_first) {
#pragma unroll
    for (int k = 0; k < kLanePixels; ++k) {
      const int last = (end[k] - 1) / kSegment;
      for (int segment = part.segment + 1; segment <= last; ++segment) {
        const int place = from.place(list_first, segment);
        if (segment == part.segment + 1) transmittance[k] = from.value(place, part.half, 0, k);
#pragma unroll
        for (int c = 0; c < kFeatures; ++c) {
          if (c + 1 < from.fields) behind[k] = fma(from.value(place, part.half, c + 1, k), gradient[k][c], behind[k]);
        }
      }
    }
  }
};

// The sums over a lane's pixels for a Gaussian. Pixels of a column have the same dx and share their sums.
template <int kFeatures, bool kAbs>
struct LaneSums {
  float one[2] = {}, dy[2] = {}, dy_dy = 0.0f, abs_x = 0.0f, abs_y = 0.0f, shares[kFeatures] = {};

  // Columns as in gradient_row, followed by the features.
  static constexpr int kGeometry = kAbs ? 8 : 6, kValues = kGeometry + kFeatures;

  __device__ void write(const AtPixels& at, float (&to)[kValues]) const {
    using namespace gradient_row;
    to[kOne] = one[0] + one[1];
    to[kDx] = fma(at.dx[0], one[0], at.dx[1] * one[1]);
    to[kDy] = dy[0] + dy[1];
    to[kDxDx] = fma(at.dx[0] * at.dx[0], one[0], at.dx[1] * at.dx[1] * one[1]);
    to[kDxDy] = fma(at.dx[0], dy[0], at.dx[1] * dy[1]);
    to[kDyDy] = dy_dy;
    if constexpr (kAbs) {
      to[kAbsX] = kLn2Twice * abs(at.e.ux) * abs_x;
      to[kAbsY] = kLn2Twice * abs_y;
    }
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) to[kGeometry + c] = shares[c];
  }
};

// The column of a row that a lane adds to, after the sums over the warp. Lane 4 i has value i of the first eight
// values; the lanes after the first of each share have the other values.
template <int kGeometry, int kValues>
struct LaneColumn {
  static constexpr int kRest = power_of_two(kValues - 8), kShare = kWarp / kRest;
  static_assert(kValues > 8 && kShare > 1);
  bool of_first, adds;
  unsigned width;  // Width of a row.
  float* to;       // Place in the first row.

  __device__ LaneColumn(const CudaRows& rows, int first) {
    const int lane = lane_index();
    of_first = lane % 4 == 0;
    const int value = of_first ? lane / 4 : 8 + lane / kShare;
    const bool is_feature = value >= kGeometry;
    const int column = is_feature ? gradient_row::kFeatures + first + value - kGeometry : value;
    adds = (of_first || lane % kShare == 1) && value < kValues && column < rows.width;
    // Absolute values cannot be summed over rounds.
    if (column == gradient_row::kAbsX || column == gradient_row::kAbsY) adds = adds && rows.needs_abs && first == 0;
    width = static_cast<unsigned>(rows.width);
    to = (rows.pair_rows != nullptr ? rows.pair_rows : rows.rows) + column;
  }

  // Sums over the warp and adds to row number `row`. The whole warp must call it; overwrites `values`.
  __device__ void add(float (&values)[kValues], unsigned row) const {
    float firsts[8], rest[kRest] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) firsts[i] = values[i];
#pragma unroll
    for (int i = 8; i < kValues; ++i) rest[i - 8] = values[i];
    const float sum = warp_sums(firsts), other = warp_sums(rest);
    if (adds) atomicAdd(to + row * static_cast<std::size_t>(width), of_first ? sum : other);
  }
};

template <int kFeatures, bool kApart, bool kAbs>
struct Differentiation {
  using Pixels = LanePixels<kFeatures, kApart>;
  using Sums = LaneSums<kFeatures, kAbs>;
  using Group = HalfGroup<kApart ? 2 : record::kFeatures / 4 + (kFeatures + 3) / 4>;
  const CudaCall& call;
  const CudaRecords& records;
  const TileLists& lists;
  const Upstream& upstream;
  const Limits& limits;
  const CudaRows& rows;
  const HalfTile& tile;
  Group& group;
  int first;  // The round's first feature.

  // The gradient of the exponent, with all features taken into account.
  __device__ float whole_gradient(int k, unsigned item, float full, float toward, Pixels& pixels,
                                  float transmittance) const {
    const float* features = records.features_of(item);
    const PixelUpstream up(call, records.features, upstream, tile.view, tile.index(k));
    for (int f = kFeatures; f < records.features.total(); ++f) toward = fma(features[f], up.gradient(f), toward);
    PixelBackward<float> state{transmittance, pixels.whole[k]};
    const float alpha = ::fminf(full, limits.alpha_max);
    const auto v = visit_backward(full, alpha, limits.differentiable_to, toward, state);
    pixels.whole[k] = state.behind;
    return v.v_sigma;
  }

  // Differentiates a Gaussian in pixel k; if it contributes there, sets `took_part`.
  __device__ void visit(int k, const AtPixels& at, const float (&features)[kFeatures], unsigned item, int position,
                        Pixels& pixels, Sums& sums, int& took_part) const {
    const float power = at.power(k);
    if (!(power >= limits.log2_alpha_min && position < pixels.end[k])) return;
    took_part = 1;
    float toward = 0.0f;
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) toward = fma(features[c], pixels.gradient[k][c], toward);
    const float full = exp2_bounded(power), before = pixels.transmittance[k];
    PixelBackward<float> state{before, pixels.behind[k]};
    const float alpha = ::fminf(full, limits.alpha_max);
    const auto v = visit_backward(full, alpha, limits.differentiable_to, toward, state);
    pixels.transmittance[k] = state.transmittance;
    pixels.behind[k] = state.behind;
#pragma unroll
    for (int c = 0; c < kFeatures; ++c) sums.shares[c] = fma(v.weight, pixels.gradient[k][c], sums.shares[c]);
    const float of_dy = at.dy[k / 2] * v.v_sigma;
    sums.one[k % 2] += v.v_sigma;
    sums.dy[k % 2] += of_dy;
    sums.dy_dy = fma(at.dy[k / 2], of_dy, sums.dy_dy);
    if constexpr (kAbs) {
      float v_sigma = v.v_sigma;
      if (kApart && rows.needs_abs && first == 0) v_sigma = whole_gradient(k, item, full, toward, pixels, before);
      const float u = fma(at.e.ux, at.dx[k % 2], at.e.uy * at.dy[k / 2]);
      sums.abs_x += abs(v_sigma * u);
      sums.abs_y += abs(v_sigma * fma(at.e.uy, u, at.e.vy * (at.e.vy * at.dy[k / 2])));
    }
  }

  // Visits the entries [position, end), at most 32, the farthest first.
  __device__ void run(int position, int end, Pixels& pixels,
                      const LaneColumn<Sums::kGeometry, Sums::kValues>& column) const {
    const Reached reached = group.load(tile, lists, records, limits, position, end, rows.pair_rows != nullptr);
    unsigned filled = 0;
    for (unsigned rest = reached.any; rest != 0;) {
      const int i = kWarp - 1 - __clz(static_cast<int>(rest));
      const unsigned bit = 1u << i;
      rest ^= bit;
      const AtPixels at(group.quarter(0, i), group.quarter(1, i), tile);
      float features[kFeatures];
      load_features<kFeatures, kApart>(records, group, i, group.item(i), first, features);
      Sums sums;
      int took_part = 0;
#pragma unroll
      for (int k = 0; k < kLanePixels; ++k) {
        if ((reached.blocks[k] & bit) == 0) continue;
        visit(k, at, features, group.item(i), position + i, pixels, sums, took_part);
      }
      if (!__any_sync(kWholeWarp, took_part)) continue;
      filled |= bit;
      float values[Sums::kValues];
      sums.write(at, values);
      column.add(values, group.row(i));
    }
    if ((filled >> lane_index() & 1u) != 0) rows.touch(call, records.places, group.item(lane_index()));
    group.done();
  }
};

template <int kFeatures, bool kApart, bool kAbs>
__global__ void __launch_bounds__(kHalfThreads, resident_blocks(kFeatures))
    pixels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                  const __grid_constant__ TileLists lists, const __grid_constant__ Segments segments,
                  const __grid_constant__ Limits limits, const __grid_constant__ Upstream upstream, const int* lasts,
                  const __grid_constant__ CudaRows rows) {
  using Work = Differentiation<kFeatures, kApart, kAbs>;
  __shared__ typename Work::Group group;
  const bool by_pair = rows.pair_rows != nullptr;
  Part part(warp_number(), static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y), lists, segments);
  if (part.segment < 0) return;
  // Several rounds add to a row, in a fixed order only if one warp adds both halves.
  const int halves = kApart && by_pair ? 2 : 1;
  if (halves == 2 && part.half > 0) return;
  for (int i = 0; i < halves; ++i, ++part.half) {
    const HalfTile tile(call, lists, part.tile, part.half);
    const bool in_segments = !kApart && segments.places > 0 && tile.list.entries != nullptr;
    typename Work::Pixels pixels;
    const int begin = part.segment * kSegment;
    const int most = pixels.find_ends(tile, lasts, in_segments ? begin + kSegment : tile.list.length);
    Work work{call, records, lists, upstream, limits, rows, tile, group, 0};
    const int total = kApart ? records.features.total() : 1;
    for (; most > begin && work.first < total; work.first += kFeatures) {
      pixels.start(call, records.features, upstream, tile, work.first);
      if (in_segments) pixels.move_to(segments, part, tile.list.first);
      const LaneColumn<Work::Sums::kGeometry, Work::Sums::kValues> column(rows, work.first);
      for (int position = (most - 1) / kWarp * kWarp; position >= begin; position -= kWarp) {
        work.run(position, most, pixels, column);
      }
    }
  }
}

}  // namespace

void cuda_blend_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                         const Segments& segments, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                         cudaStream_t stream) {
  const std::size_t tiles = static_cast<std::size_t>(lists.views) * lists.tiles_x * lists.tiles_y;
  with_half_features(records.features.total(), [&](auto features, auto apart) {
    constexpr int kFeatures = decltype(features)::value;
    constexpr bool kApart = decltype(apart)::value;
    // Kernels for many features always have the sums of absolute values.
    const auto kernel = rows.needs_abs ? &pixels_kernel<kFeatures, kApart, true>
                                       : &pixels_kernel<kFeatures, kApart, (kFeatures > kFewFeatures)>;
    launch(kernel, blocks_of_halves(2 * (tiles + segments.places)), kHalfThreads, 0, stream, call, records, lists,
           segments, Limits(call.settings), upstream, lasts, rows);
  });
}

}  // namespace lumigrad::gaussians
