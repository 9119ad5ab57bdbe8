// The coefficients of spherical harmonics of a warp's Gaussians, in shared memory. In device memory the rows of two
// lanes lie 192 bytes apart, so that lanes that each walk their own row access 32 places at a time. Instead the warp
// moves its rows together, four lanes for 64 bytes of a row, and each lane then accesses its row in shared memory.
#pragma once

#include <cstdint>

#include "gaussians/cuda/gaussian.cuh"

namespace lumigrad::gaussians {

inline constexpr int kStagedChannels = 3;

// Whether rows can be moved in this way: whether they are whole quads of floats, and aligned. If not, each lane
// accesses its own row.
inline bool can_stage(const Scene& scene, const float* gradients) {
  const auto aligned = [](const float* p) { return reinterpret_cast<std::uintptr_t>(p) % sizeof(float4) == 0; };
  return scene.channels == kStagedChannels && scene.coefficients % 4 == 0 && aligned(scene.sh) && aligned(gradients);
}

// The next degree has 25 coefficients, which are not whole quads.
inline constexpr int kMaxStagedDegree = 3;

// Calls run(std::integral_constant<int, degree>()), unless the degree is higher.
template <class Run>
void with_staged_degree(int degree, const Run& run) {
  static_assert(kMaxStagedDegree == 3);
  if (degree == 0) run(std::integral_constant<int, 0>());
  if (degree == 1) run(std::integral_constant<int, 1>());
  if (degree == 2) run(std::integral_constant<int, 2>());
  if (degree == 3) run(std::integral_constant<int, 3>());
}

// The rows of a warp: the first lane's row, followed by the rows of the other lanes.
template <class Quad>
struct WarpRows {
  Quad* first;
  int width;  // Quads of a row.

  template <class Float>
  __device__ WarpRows(Float* rows, int64_t lane0, const Scene& scene)
      : first(nullptr), width(scene.coefficients * kStagedChannels / 4) {
    if (rows != nullptr) first = reinterpret_cast<Quad*>(rows) + lane0 * width;
  }
};

// The part of a warp's rows that a degree needs, from the front. The whole warp must call load, store and clear_behind
// together, with lanes as bits.
template <int kDegree>
class StagedRows {
 public:
  // Fetches the rows of `lanes`.
  __device__ void load(const WarpRows<const float4>& from, unsigned lanes) {
    // Lanes may still read their rows of another view.
    __syncwarp();
#pragma unroll 2
    for (int step = 0; step < kAcross; ++step) {
      const int row = row_of(step);
      if (!has_lane(lanes, row)) continue;
      const float4* first = from.first + row * from.width;
      float4 values[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (column(i) < kQuads) values[i] = first[column(i)];
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (column(i) < kQuads) quad(row, column(i)) = values[i];
      }
    }
    __syncwarp();
  }

  // Writes the rows of `lanes`; adds to the rows of `added`.
  __device__ void store(const WarpRows<float4>& to, unsigned lanes, unsigned added) {
    __syncwarp();
#pragma unroll 2
    for (int step = 0; step < kAcross; ++step) {
      const int row = row_of(step);
      if (!has_lane(lanes, row)) continue;
      const bool adds = has_lane(added, row);
      float4* first = to.first + row * to.width;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (column(i) >= kQuads) continue;
        const float4 value = quad(row, column(i));
        float4& at = first[column(i)];
        at = adds ? make_float4(at.x + value.x, at.y + value.y, at.z + value.z, at.w + value.w) : value;
      }
    }
    __syncwarp();
  }

  // Sets the rest of the rows of `lanes` to 0.
  __device__ static void clear_behind(const WarpRows<float4>& to, unsigned lanes) {
    for (int step = 0; kQuads < to.width && step < kAcross; ++step) {
      if (!has_lane(lanes, row_of(step))) continue;
      float4* row = to.first + row_of(step) * to.width;
      for (int i = kQuads + column(0); i < to.width; i += kAcross) row[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  // Calls visit(coefficient, channel, value) for each value of a row, in order.
  template <class Visit>
  __device__ void each_value(int row, const Visit& visit) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float4 four = quad(row, q);
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 4 * q; i < 4 * q + 4 && i < kFloats; ++i) {
        visit(i / kStagedChannels, i % kStagedChannels, values[i - 4 * q]);
      }
    }
  }

  // Sets each value of a row to value(coefficient, channel), and the padding of its last quad to 0.
  template <class Value>
  __device__ void fill(int row, const Value& value) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      float values[4] = {};
#pragma unroll
      for (int i = 4 * q; i < 4 * q + 4 && i < kFloats; ++i) {
        values[i - 4 * q] = value(i / kStagedChannels, i % kStagedChannels);
      }
      quad(row, q) = make_float4(values[0], values[1], values[2], values[3]);
    }
  }

 private:
  static constexpr int kFloats = kStagedChannels * kHarmonics<kDegree>;
  static constexpr int kQuads = (kFloats + 3) / 4;
  // Odd, so that eight lanes access the same quad of their rows in different banks.
  static constexpr int kStride = kQuads | 1;
  // The number of lanes that move a row, and of quads that each lane moves.
  static constexpr int kAcross = 4;
  static constexpr int kEach = (kQuads + kAcross - 1) / kAcross;

  __device__ static bool has_lane(unsigned lanes, int lane) { return (lanes >> lane & 1u) != 0; }
  __device__ static int row_of(int step) { return step * (kWarp / kAcross) + lane_index() / kAcross; }
  // The number of the lane's i-th quad of a row; from kQuads on it is beyond the front.
  __device__ static int column(int i) { return lane_index() % kAcross + i * kAcross; }

  __device__ float4& quad(int row, int i) { return quads_[row * kStride + i]; }

  SharedArray<float4, kWarp * kStride> quads_;
};

// The rows of the calling warp.
template <int kDegree>
__device__ inline StagedRows<kDegree>& staged_rows() {
  __shared__ StagedRows<kDegree> of_warps[kGaussianWarps];
  return of_warps[static_cast<int>(threadIdx.x) / kWarp];
}

}  // namespace lumigrad::gaussians
