// Steps of Adam: blocks of threads take whole rows, check them for non-finite gradients, then update them.
#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "common/math/harmonics.h"
#include "training/cuda/engine.h"
#include "training/math/adam.h"
#include "training/math/float16.h"

namespace lumigrad::training {
namespace {

constexpr int kThreads = 256;
constexpr int kNumbers = 2048;  // Numbers of a block; more only if it has a single row.
constexpr int kFour = 4;        // Numbers that a thread takes at a time.
constexpr int kGroups = 24;     // The most groups of a launch, which are passed as arguments.

enum RowState { kSteps, kBad, kUnseen };

struct Call {
  AdamGroup groups[kGroups];
  int64_t first[kGroups + 1];  // The first block of each group.
  bool aligned[kGroups];       // Whether blocks of the group begin where four numbers can be read at once.
  int count;
  AdamSettings settings;
};

// A multiple of four rows, if they fit, so that each block begins at a multiple of four numbers.
__host__ __device__ inline int64_t rows_of_block(const AdamGroup& group) {
  const int64_t rows = group.width < kNumbers ? kNumbers / group.width : 1;
  return rows < kFour ? rows : rows - rows % kFour;
}

bool is_aligned(const AdamGroup& group) {
  const auto is_multiple = [](const void* pointer, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
  };
  const std::size_t gradient = group.gradient_type == Real::float32 ? sizeof(float4) : sizeof(uint2);
  return rows_of_block(group) * group.width % kFour == 0 && is_multiple(group.raw, sizeof(float4)) &&
         is_multiple(group.first, sizeof(float4)) && is_multiple(group.second, sizeof(float4)) &&
         is_multiple(group.value, sizeof(float4)) && is_multiple(group.gradient, gradient);
}

__device__ float chain(const AdamGroup& group, float gradient, float raw) {
  if (group.activation == Activation::exp) return raw_gradient<Activation::exp>(gradient, raw);
  if (group.activation == Activation::sigmoid) return raw_gradient<Activation::sigmoid>(gradient, raw);
  return gradient;
}

__device__ float value_of(const AdamGroup& group, float raw) {
  if (group.activation == Activation::exp) return activate<Activation::exp>(raw);
  if (group.activation == Activation::sigmoid) return activate<Activation::sigmoid>(raw);
  return raw;
}

// The place of a thread in its group: `count` numbers from `at` on, the first in `row` of the block at `column`.
// `wide`: whether there are four numbers that can be read at once.
struct Four {
  int64_t at;
  int row, column, count;
  bool wide;

  __device__ Four(const AdamGroup& group, bool aligned, int64_t begin, int i, int numbers)
      : at(begin + i),
        row(i / group.width),
        column(i - row * group.width),
        count(::min(kFour, numbers - i)),
        wide(aligned && count == kFour) {}

  // Calls body(k, row, column) for each number.
  template <class Body>
  __device__ void each(const AdamGroup& group, const Body& body) const {
    int r = row, c = column;
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if (k < count) body(k, r, c);
      if (++c == group.width) {
        c = 0;
        ++r;
      }
    }
  }
};

__device__ void load(const float* from, const Four& four, float (&to)[kFour]) {
  if (four.wide) {
    const float4 all = *reinterpret_cast<const float4*>(from + four.at);
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
  } else {
#pragma unroll
    for (int k = 0; k < kFour; ++k) to[k] = k < four.count ? from[four.at + k] : 0.0f;
  }
}

__device__ void load(const uint16_t* from, const Four& four, int (&to)[kFour]) {
  if (four.wide) {
    const uint2 all = *reinterpret_cast<const uint2*>(from + four.at);
    to[0] = static_cast<int>(all.x & 0xFFFFu), to[1] = static_cast<int>(all.x >> 16);
    to[2] = static_cast<int>(all.y & 0xFFFFu), to[3] = static_cast<int>(all.y >> 16);
  } else {
#pragma unroll
    for (int k = 0; k < kFour; ++k) to[k] = k < four.count ? from[four.at + k] : 0;
  }
}

// A block's gradients given by factors: for each row its harmonics, and the numbers that multiply them.
class Factors {
 public:
  // Fetches the factors of `rows` rows from `row` on. All threads must call it.
  __device__ void load(const AdamGroup& group, int64_t row, int rows) {
    for (int r = static_cast<int>(threadIdx.x); r < rows; r += kThreads) {
      const float* from = group.factors + (row + r) * kFactors;
      const int to = r * stride(group);
      const Direction d{from[0], from[1], from[2]};
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
      for (int c = 0; c < kChannels; ++c) values_[to + count(group) + c] = from[3 + c];
    }
  }

  // The gradients of some numbers.
  __device__ void gradients(const AdamGroup& group, const Four& four, float (&to)[kFour]) {
    four.each(group, [&](int k, int row, int column) {
      const int harmonic = column / kChannels, channel = column - harmonic * kChannels;
      const int begin = row * stride(group), count = Factors::count(group);
      to[k] = harmonic < count ? values_[begin + harmonic] * values_[begin + count + channel] : 0.0f;
    });
  }

 private:
  static constexpr int kChannels = 3, kFactors = 6;
  // Rows of few coefficients need the most memory: 168 rows of four coefficients.
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

// Stores the numbers k for which `on` has bit k.
__device__ void store(float* to, const Four& four, const float (&from)[kFour], unsigned on) {
  if (four.wide && on == (1u << kFour) - 1) {
    *reinterpret_cast<float4*>(to + four.at) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if (on >> k & 1) to[four.at + k] = from[k];
    }
  }
}

// Loads gradients with respect to raw parameters.
__device__ void load_gradients(const AdamGroup& group, const AdamSettings& settings, Factors& factors, const Four& four,
                               float (&to)[kFour]) {
  if (group.factors != nullptr) {
    factors.gradients(group, four, to);
  } else if (group.gradient_type == Real::float32) {
    load(static_cast<const float*>(group.gradient), four, to);
  } else {
    int halves[kFour];
    load(static_cast<const uint16_t*>(group.gradient), four, halves);
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      to[k] = group.gradient_type == Real::float16 ? from_float16<float>(halves[k]) : from_bfloat16<float>(halves[k]);
    }
  }
  float raw[kFour] = {};
  if (group.activation != Activation::identity) load(group.raw, four, raw);
#pragma unroll
  for (int k = 0; k < kFour; ++k) to[k] = chain(group, to[k] * settings.gradient_scale, raw[k]);
}

// Steps the numbers k for which `on` has bit k.
__device__ void step_numbers(const AdamGroup& group, const AdamSettings& settings, const Four& four,
                             const float (&gradients)[kFour], unsigned on) {
  float raw[kFour], first[kFour], second[kFour];
  load(group.raw, four, raw);
  load(group.first, four, first);
  load(group.second, four, second);
  four.each(group, [&](int k, int, int column) {
    const float step_size = column < group.head ? group.head_step_size : group.step_size;
    adam_update(settings, step_size, gradients[k], raw[k], first[k], second[k]);
  });
  store(group.raw, four, raw, on);
  store(group.first, four, first, on);
  store(group.second, four, second, on);
  if (group.value == nullptr) return;
#pragma unroll
  for (int k = 0; k < kFour; ++k) raw[k] = value_of(group, raw[k]);
  store(group.value, four, raw, on);
}

// Findings of a thread, a block or all blocks of a group.
struct Found {
  double squares;
  float largest;
  unsigned long long not_finite, skipped, updated;

  __device__ void add(const Found& other) {
    squares += other.squares;
    largest = max(largest, other.largest);
    not_finite += other.not_finite;
    skipped += other.skipped;
    updated += other.updated;
  }
};

__device__ Found of_warp(Found found) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const auto other = [&](auto value) { return __shfl_xor_sync(kWholeWarp, value, offset); };
    found.add({other(found.squares), other(found.largest), other(found.not_finite), other(found.skipped),
               other(found.updated)});
  }
  return found;
}

// Sums the findings of a block in a fixed order, for its first warp. All threads must call it, once.
__device__ Found of_block(const Found& found) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ SharedArray<Found, kWarps> warps;
  const Found whole = of_warp(found);
  const int thread = static_cast<int>(threadIdx.x);
  if (lane_index() == 0) warps[thread / kWarp] = whole;
  __syncthreads();
  if (thread >= kWarp) return {};
  return of_warp(thread < kWarps ? warps[thread] : Found{});
}

__global__ void __launch_bounds__(kThreads) adam_kernel(const __grid_constant__ Call call, Found* parts) {
  __shared__ SharedArray<int, kNumbers> state;
  __shared__ Factors factors;
  int number = 0;
  while (blockIdx.x >= call.first[number + 1]) ++number;
  const AdamGroup& group = call.groups[number];
  const int64_t row = (blockIdx.x - call.first[number]) * rows_of_block(group), left = group.count - row;
  const int rows = static_cast<int>(left < rows_of_block(group) ? left : rows_of_block(group));
  const int numbers = rows * group.width, thread = static_cast<int>(threadIdx.x);
  const int64_t begin = row * group.width;
  Found found{};
  for (int r = thread; r < rows; r += kThreads) {
    state[r] = group.rows != nullptr && group.rows[row + r] == 0 ? kUnseen : kSteps;
  }
  if (group.factors != nullptr) factors.load(group, row, rows);
  __syncthreads();
  const bool aligned = call.aligned[number];
  for (int i = kFour * thread; i < numbers; i += kFour * kThreads) {
    const Four four(group, aligned, begin, i, numbers);
    float gradients[kFour] = {};
    load_gradients(group, call.settings, factors, four, gradients);
    four.each(group, [&](int k, int r, int) {
      if (is_finite(gradients[k]) || state[r] == kUnseen) return;
      ++found.not_finite;
      state[r] = kBad;
    });
  }
  __syncthreads();
  for (int r = thread; r < rows; r += kThreads) {
    found.skipped += state[r] == kBad;
    found.updated += state[r] == kSteps;
  }
  for (int i = kFour * thread; i < numbers; i += kFour * kThreads) {
    const Four four(group, aligned, begin, i, numbers);
    unsigned on = 0;
    four.each(group, [&](int k, int r, int) { on |= state[r] == kSteps ? 1u << k : 0u; });
    if (on == 0) continue;
    float gradients[kFour] = {};
    load_gradients(group, call.settings, factors, four, gradients);
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if ((on >> k & 1) == 0) continue;
      found.squares += static_cast<double>(gradients[k]) * static_cast<double>(gradients[k]);
      found.largest = max(found.largest, abs(gradients[k]));
    }
    step_numbers(group, call.settings, four, gradients, on);
  }
  found = of_block(found);
  if (thread == 0) parts[blockIdx.x] = found;
}

// Sums the findings of each group's blocks, with a block per group.
__global__ void __launch_bounds__(kThreads)
    sums_kernel(const __grid_constant__ Call call, const Found* parts, double* to) {
  Found found{};
  for (int64_t b = call.first[blockIdx.x] + threadIdx.x; b < call.first[blockIdx.x + 1]; b += kThreads) {
    found.add(parts[b]);
  }
  found = of_block(found);
  if (threadIdx.x != 0) return;
  double* sums = to + blockIdx.x * kAdamSums;
  sums[kSquares] = found.squares;
  sums[kLargest] = static_cast<double>(found.largest);
  sums[kNotFinite] = static_cast<double>(found.not_finite);
  sums[kSkipped] = static_cast<double>(found.skipped);
  sums[kUpdated] = static_cast<double>(found.updated);
}

void step_some(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums, cudaStream_t stream) {
  Call call{};
  call.count = count;
  call.settings = settings;
  for (int i = 0; i < count; ++i) {
    call.groups[i] = groups[i];
    call.aligned[i] = is_aligned(groups[i]);
    const int64_t rows = rows_of_block(groups[i]);
    call.first[i + 1] = call.first[i] + (groups[i].count + rows - 1) / rows;
  }
  const auto blocks = static_cast<unsigned>(call.first[count]);
  DeviceBuffer<Found> parts(blocks, stream);
  launch(adam_kernel, blocks, kThreads, 0, stream, call, parts.data());
  launch(sums_kernel, static_cast<unsigned>(count), kThreads, 0, stream, call, parts.data(), sums);
}

}  // namespace

DeviceTimer cuda_adam(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums,
                      cudaStream_t stream) {
  DeviceTimer timer(stream);
  for (int i = 0; i < count; i += kGroups) {
    step_some(groups + i, std::min(kGroups, count - i), settings, sums + i * kAdamSums, stream);
  }
  timer.mark("adam");
  return timer;
}

}  // namespace lumigrad::training
