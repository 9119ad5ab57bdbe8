// Gradients of harmonics that are given by factors.
#pragma once

#include "common/cuda/primitives.cuh"
#include "common/math/harmonics.h"
#include "training/cuda/four_numbers.cuh"

namespace lumigrad::training {

// A block's gradients given by factors: for each row its harmonics, and the numbers that multiply them.
class Factors {
 public:
  // Fetches the factors of `rows` rows from `row` on. All threads call it.
  __device__ void load(const AdamGroup& group, int64_t row, int rows) {
    for (int r = static_cast<int>(threadIdx.x); r < rows; r += kThreads) {
      const float* from = group.factors + (row + r) * kFactors;
      const int to = r * stride(group);
      const Direction d{from[0], from[1], from[2]};
      const float color[kChannels] = {from[3], from[4], from[5]};
      switch (group.degree) {
        case 0:
          harmonics<0>(d, to);
          break;
        case 1:
          harmonics<1>(d, to);
          break;
        case 2:
          harmonics<2>(d, to);
          break;
        case 3:
          harmonics<3>(d, to);
          break;
        default:
          harmonics<4>(d, to);
          break;
      }
      for (int c = 0; c < kChannels; ++c) values_[to + count(group) + c] = color[c];
    }
    __syncthreads();
  }

  // The gradients of some numbers.
  template <bool kWide>
  __device__ void gradients(const AdamGroup& group, const Four<kWide>& four, float (&to)[kFour]) {
    const int count = Factors::count(group);
    int begin = four.row * stride(group), harmonic = four.column / kChannels;
    int channel = four.column - harmonic * kChannels, left = group.width - four.column;
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if (kWide || k < four.count) {
        const float value = values_[begin + ::min(harmonic, count - 1)] * values_[begin + count + channel];
        to[k] = harmonic < count ? value : 0.0f;
      }
      if (++channel == kChannels) channel = 0, ++harmonic;
      if (--left == 0) begin += stride(group), harmonic = 0, left = group.width;
    }
  }

 private:
  static constexpr int kChannels = 3, kFactors = 6;
  // Rows of few coefficients need the most memory: 128 rows of four coefficients.
  static constexpr int kLeastWidth = 4 * kChannels, kMost = kNumbers / kLeastWidth * (4 + kChannels);

  struct Direction {
    float x, y, z;
  };

  __device__ static int count(const AdamGroup& group) { return (group.degree + 1) * (group.degree + 1); }
  // Odd, so that the threads of a warp access different banks.
  __device__ static int stride(const AdamGroup& group) { return (count(group) + kChannels) | 1; }

  template <int kDegree>
  __device__ void harmonics(const Direction& d, int to) {
    each_harmonic<kDegree>(d, [&](int k, float value, const Direction&) { values_[to + k] = value; });
  }

  SharedArray<float, kMost> values_;
};

}  // namespace lumigrad::training
