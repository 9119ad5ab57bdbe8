// Steps of Adam: blocks of threads take whole rows, check them for values that are not finite, then update them.
#include <algorithm>

#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "training/cuda/engine.h"
#include "training/math/adam.h"
#include "training/math/float16.h"

namespace lumigrad::training {
namespace {

constexpr int kThreads = 256;
constexpr int kNumbers = 2048;  // In a block; more only of a single row.
constexpr int kGroups = 24;     // In a launch: they are its arguments.

enum RowState { kSteps, kBad, kUnseen };

struct Call {
  AdamGroup groups[kGroups];
  int64_t first[kGroups + 1];  // Block of each group.
  int count;
  AdamSettings settings;
};

__host__ __device__ inline int64_t rows_of_block(const AdamGroup& group) {
  return group.width < kNumbers ? kNumbers / group.width : 1;
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

__device__ float gradient_at(const AdamGroup& group, const AdamSettings& settings, int64_t i) {
  float gradient;
  if (group.gradient_type == Real::float32) {
    gradient = static_cast<const float*>(group.gradient)[i];
  } else {
    const int half = static_cast<const uint16_t*>(group.gradient)[i];
    gradient = group.gradient_type == Real::float16 ? from_float16<float>(half) : from_bfloat16<float>(half);
  }
  return chain(group, gradient * settings.gradient_scale, group.raw[i]);
}

__device__ void step_number(const AdamGroup& group, const AdamSettings& settings, int64_t i, float gradient) {
  float raw = group.raw[i], first = group.first[i], second = group.second[i];
  const bool in_head = group.head > 0 && static_cast<int>(i % group.width) < group.head;
  adam_update(settings, in_head ? group.head_step_size : group.step_size, gradient, raw, first, second);
  group.raw[i] = raw;
  group.first[i] = first;
  group.second[i] = second;
  if (group.value != nullptr) group.value[i] = value_of(group, raw);
}

// What a thread, a block or all blocks of a group found.
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

// In a fixed order, for the first warp of the block. All threads call it, once.
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
  __syncthreads();
  for (int i = thread; i < numbers; i += kThreads) {
    const int r = i / group.width;
    if (state[r] == kUnseen || is_finite(gradient_at(group, call.settings, begin + i))) continue;
    ++found.not_finite;
    state[r] = kBad;
  }
  __syncthreads();
  for (int r = thread; r < rows; r += kThreads) {
    found.skipped += state[r] == kBad;
    found.updated += state[r] == kSteps;
  }
  for (int i = thread; i < numbers; i += kThreads) {
    if (state[i / group.width] != kSteps) continue;
    const float gradient = gradient_at(group, call.settings, begin + i);
    found.squares += static_cast<double>(gradient) * static_cast<double>(gradient);
    found.largest = max(found.largest, abs(gradient));
    step_number(group, call.settings, begin + i, gradient);
  }
  found = of_block(found);
  if (thread == 0) parts[blockIdx.x] = found;
}

// A block per group adds up what its blocks found.
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
