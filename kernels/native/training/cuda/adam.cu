// Steps of Adam: blocks of threads take whole rows, check them for non-finite gradients, then update them.
#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "training/cuda/engine.h"
#include "training/cuda/factors.cuh"
#include "training/cuda/four_numbers.cuh"
#include "training/cuda/rounded.cuh"
#include "training/math/adam.h"
#include "training/math/float16.h"

namespace lumigrad::training {
namespace {

constexpr int kGroups = 24;  // The most groups of a launch, which are passed as arguments.
constexpr int kBlocks = 5;   // Blocks of a multiprocessor that there are registers for.
constexpr int kSumThreads = 1024;

struct Call {
  AdamGroup groups[kGroups];
  int64_t first[kGroups + 1];  // The first block of each group.
  bool aligned[kGroups];       // Whether blocks of the group begin where four numbers can be read at once.
  unsigned inverse[kGroups];   // See inverse_width.
  int count;
  AdamSettings settings;
};

bool is_aligned(const AdamGroup& group) {
  const auto is_multiple = [](const void* pointer, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
  };
  const std::size_t gradient = group.gradient_type == Real::float32 ? sizeof(float4) : sizeof(uint2);
  return rows_of_block(group) * group.width % kFour == 0 && is_multiple(group.raw, sizeof(float4)) &&
         is_multiple(group.first, sizeof(float4)) && is_multiple(group.second, sizeof(float4)) &&
         is_multiple(group.value, sizeof(float4)) && is_multiple(group.gradient, gradient);
}

template <Activation kActivation>
__device__ void chain(float (&gradients)[kFour], const float (&raw)[kFour]) {
#pragma unroll
  for (int k = 0; k < kFour; ++k) gradients[k] = raw_gradient<kActivation>(gradients[k], raw[k]);
}

template <Activation kActivation>
__device__ void activate_all(float (&numbers)[kFour]) {
#pragma unroll
  for (int k = 0; k < kFour; ++k) numbers[k] = activate<kActivation>(numbers[k]);
}

__device__ float warp_largest(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(kWholeWarp, value, offset));
  return value;
}

// Findings of a thread or a block; a group's sums of the counts may need 64 bits.
struct Found {
  double squares;
  float largest;
  unsigned not_finite, skipped, updated;
};

// Four numbers of a thread. kWide: as for Four, and that all their rows step, or none if there are none.
template <bool kWide>
class Numbers {
 public:
  __device__ Numbers(const Rows& rows, int i) : rows_(rows), four_(rows, i) {}

  // Whether a number is in a row that is wanted(row), as bits.
  template <class Wanted>
  __device__ unsigned of_rows(const Wanted& wanted) const {
    unsigned on = 0;
    four_.each(rows_.group, [&](int k, int r, int) { on |= wanted(r) ? 1u << k : 0u; });
    return on;
  }

  __device__ void load_state() {
    load(rows_.group.raw, four_, raw_);
    load(rows_.group.first, four_, first_);
    load(rows_.group.second, four_, second_);
  }

  __device__ void load_gradients(Factors& factors) {
    const AdamGroup& group = rows_.group;
    if (group.factors != nullptr) {
      factors.gradients(group, four_, gradients_);
    } else if (group.gradient_type == Real::float32) {
      load(static_cast<const float*>(group.gradient), four_, gradients_);
    } else {
      load_halves();
    }
  }

  // Turns the gradients into those of the raw parameters.
  __device__ void chain_gradients(const AdamSettings& settings) {
    const AdamGroup& group = rows_.group;
#pragma unroll
    for (int k = 0; k < kFour; ++k) gradients_[k] = gradients_[k] * settings.gradient_scale;
    if (group.activation == Activation::exp) chain<Activation::exp>(gradients_, raw_);
    if (group.activation == Activation::sigmoid) chain<Activation::sigmoid>(gradients_, raw_);
  }

  // The numbers that are not finite, as bits.
  __device__ unsigned not_finite() const {
    unsigned bad = 0;
#pragma unroll
    for (int k = 0; k < kFour; ++k) bad |= k < four_.count && !is_finite(gradients_[k]) ? 1u << k : 0u;
    return bad;
  }

  template <class Body>
  __device__ void each_row(const Body& body) const {
    four_.each(rows_.group, [&](int k, int r, int) { body(k, r); });
  }

  // Steps the numbers k for which `on` has bit k.
  __device__ void step(const AdamSettings& settings, unsigned on, Found& found) {
    const AdamGroup& group = rows_.group;
    float sizes[kFour] = {group.step_size, group.step_size, group.step_size, group.step_size};
    if (group.head > 0) {
      four_.each(group, [&](int k, int, int column) {
        if (column < group.head) sizes[k] = group.head_step_size;
      });
    }
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if (!kWide && (on >> k & 1) == 0) continue;
      found.squares += static_cast<double>(gradients_[k]) * static_cast<double>(gradients_[k]);
      found.largest = max(found.largest, abs(gradients_[k]));
      adam_moments(settings, gradients_[k], first_[k], second_[k]);
    }
    move(settings, sizes);
    store(group.raw, four_, raw_, on);
    store(group.first, four_, first_, on);
    store(group.second, four_, second_, on);
    if (group.value == nullptr) return;
    if (group.activation == Activation::exp) activate_all<Activation::exp>(raw_);
    if (group.activation == Activation::sigmoid) activate_all<Activation::sigmoid>(raw_);
    store(group.value, four_, raw_, on);
  }

 private:
  // Moves raw numbers by the moments.
  __device__ void move(const AdamSettings& settings, const float (&sizes)[kFour]) {
    float by[kFour];
    bool sure = true;
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      by[k] = rounded_quotient(first_[k], adam_divisor(settings, rounded_root(second_[k], sure)), sure);
    }
    if (!sure) {
#pragma unroll
      for (int k = 0; k < kFour; ++k) by[k] = first_[k] / adam_divisor(settings, sqrt(second_[k]));
    }
#pragma unroll
    for (int k = 0; k < kFour; ++k) raw_[k] = fnma(sizes[k], by[k], raw_[k]);
  }

  __device__ void load_halves() {
    int halves[kFour];
    load(static_cast<const uint16_t*>(rows_.group.gradient), four_, halves);
    const bool is_float16 = rows_.group.gradient_type == Real::float16;
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      gradients_[k] = is_float16 ? from_float16<float>(halves[k]) : from_bfloat16<float>(halves[k]);
    }
  }

  const Rows& rows_;
  Four<kWide> four_;
  float raw_[kFour] = {}, first_[kFour] = {}, second_[kFour] = {}, gradients_[kFour] = {};
};

// A block's rows that are left out for their gradients, and what it counts.
class Exceptions {
 public:
  // All threads call it, and synchronise before they leave out rows.
  __device__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kThreads) spoilt_[i] = 0;
    if (threadIdx.x == 0) not_finite_[0] = seen_[0] = 0;
  }

  // Leaves out the rows of the numbers k for which `bad` has bit k.
  __device__ void spoil(const Numbers<false>& numbers, unsigned bad) {
    if (bad == 0) return;
    numbers.each_row([&](int k, int r) {
      if (bad >> k & 1) atomicOr(&spoilt_[r / kWarp], 1u << r % kWarp);
    });
    atomicAdd(&not_finite_[0], static_cast<unsigned>(__popc(bad)));
  }

  __device__ bool is_spoilt(int r) { return (spoilt_[r / kWarp] >> r % kWarp & 1) != 0; }

  // Counts the rows that are seen. All threads call it.
  __device__ void count_seen(const Rows& rows) {
    if (rows.group.rows == nullptr) return;
    unsigned seen = 0;
    for (int r = static_cast<int>(threadIdx.x); r < rows.count; r += kThreads) seen += rows.seen(r) ? 1 : 0;
    if (seen > 0) atomicAdd(&seen_[0], seen);
  }

  // Writes the counts, once all threads have counted. `any`: whether any row may be left out.
  __device__ void tell(const Rows& rows, bool any, Found& found) {
    found.skipped = 0;
    for (int i = 0; any && i < kWords; ++i) found.skipped += static_cast<unsigned>(__popc(spoilt_[i]));
    found.not_finite = not_finite_[0];
    found.updated = (rows.group.rows == nullptr ? static_cast<unsigned>(rows.count) : seen_[0]) - found.skipped;
  }

 private:
  static constexpr int kWords = kNumbers / kWarp;
  SharedArray<unsigned, kWords> spoilt_;  // Rows as bits.
  SharedArray<unsigned, 1> not_finite_, seen_;
};

// Steps rows if all their gradients are finite; returns whether they are. All numbers are loaded once, before anything
// waits.
__device__ bool step_all(const AdamSettings& settings, const Rows& rows, Factors& factors, Found& found) {
  const int begin = kFour * static_cast<int>(threadIdx.x);
  Numbers<true> own[kFours] = {{rows, begin}, {rows, begin + kFour * kThreads}};
  static_assert(kFours == 2);
  const auto has = [&](int j) { return begin + j * kFour * kThreads < rows.numbers; };
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    if (has(j)) own[j].load_state();
  }
  if (rows.group.factors != nullptr) factors.load(rows.group, rows.row, rows.count);
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    if (has(j)) own[j].load_gradients(factors);
  }
  unsigned bad = 0;
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    own[j].chain_gradients(settings);
    bad |= own[j].not_finite();
  }
  if (__syncthreads_or(static_cast<int>(bad)) != 0) return false;
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    if (has(j)) own[j].step(settings, (1u << kFour) - 1, found);
  }
  return true;
}

// Steps the rows that are seen and whose gradients are finite, which takes two passes.
__device__ void step_some_rows(const AdamSettings& settings, const Rows& rows, Factors& factors, Exceptions& exceptions,
                               Found& found) {
  if (rows.group.factors != nullptr) factors.load(rows.group, rows.row, rows.count);
  // Calls body(numbers, on) with the numbers in rows that are wanted(row).
  const auto each = [&](const auto& wanted, const auto& body) {
#pragma unroll 1
    for (int i = kFour * static_cast<int>(threadIdx.x); i < rows.numbers; i += kFour * kThreads) {
      Numbers<false> numbers(rows, i);
      const unsigned on = numbers.of_rows(wanted);
      if (on == 0) continue;
      numbers.load_state();
      numbers.load_gradients(factors);
      numbers.chain_gradients(settings);
      body(numbers, on);
    }
  };
  const auto seen = [&](int r) { return rows.seen(r); };
  __syncthreads();
  each(seen, [&](Numbers<false>& numbers, unsigned on) { exceptions.spoil(numbers, numbers.not_finite() & on); });
  exceptions.count_seen(rows);
  __syncthreads();
  each([&](int r) { return rows.seen(r) && !exceptions.is_spoilt(r); },
       [&](Numbers<false>& numbers, unsigned on) { numbers.step(settings, on, found); });
}

__global__ void __launch_bounds__(kThreads, kBlocks) adam_kernel(const __grid_constant__ Call call, Found* parts) {
  __shared__ Factors factors;
  __shared__ Exceptions exceptions;
  __shared__ SharedArray<float, kThreads / kWarp> largest;
  exceptions.clear();
  int number = 0;
  while (blockIdx.x >= call.first[number + 1]) ++number;
  const AdamGroup& group = call.groups[number];
  const int64_t row = (blockIdx.x - call.first[number]) * rows_of_block(group), left = group.count - row;
  const int count = static_cast<int>(left < rows_of_block(group) ? left : rows_of_block(group));
  const Rows rows{group, call.inverse[number], call.aligned[number], row, count, count * group.width};
  Found found{};
  const bool wide = rows.aligned && rows.numbers % kFour == 0 && rows.numbers <= kNumbers && group.rows == nullptr;
  const bool all = wide && step_all(call.settings, rows, factors, found);
  if (!all) step_some_rows(call.settings, rows, factors, exceptions, found);
  const int thread = static_cast<int>(threadIdx.x);
  found.largest = warp_largest(found.largest);
  if (lane_index() == 0) largest[thread / kWarp] = found.largest;
  found.squares = block_total<kThreads>(found.squares);  // Synchronises.
  if (thread > 0) return;
  for (int w = 1; w < kThreads / kWarp; ++w) found.largest = max(found.largest, largest[w]);
  exceptions.tell(rows, !all, found);
  parts[blockIdx.x] = found;
}

// Sums the findings of each group's blocks, with a block per group.
__global__ void __launch_bounds__(kSumThreads)
    sums_kernel(const __grid_constant__ Call call, const Found* parts, double* to) {
  __shared__ SharedArray<float, kSumThreads / kWarp> warps;
  double squares = 0.0, not_finite = 0.0, skipped = 0.0, updated = 0.0;
  float largest = 0.0f;
#pragma unroll 4
  for (int64_t b = call.first[blockIdx.x] + threadIdx.x; b < call.first[blockIdx.x + 1]; b += kSumThreads) {
    const Found part = parts[b];
    squares += part.squares;
    largest = max(largest, part.largest);
    not_finite += part.not_finite;
    skipped += part.skipped;
    updated += part.updated;
  }
  largest = warp_largest(largest);
  if (lane_index() == 0) warps[static_cast<int>(threadIdx.x) / kWarp] = largest;
  squares = block_total<kSumThreads>(squares);
  not_finite = block_total<kSumThreads>(not_finite);
  skipped = block_total<kSumThreads>(skipped);
  updated = block_total<kSumThreads>(updated);
  if (threadIdx.x != 0) return;
  for (int w = 0; w < kSumThreads / kWarp; ++w) largest = max(largest, warps[w]);
  double* sums = to + blockIdx.x * kAdamSums;
  sums[kSquares] = squares;
  sums[kLargest] = static_cast<double>(largest);
  sums[kNotFinite] = not_finite;
  sums[kSkipped] = skipped;
  sums[kUpdated] = updated;
}

void step_some(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums, cudaStream_t stream) {
  Call call{};
  call.count = count;
  call.settings = settings;
  for (int i = 0; i < count; ++i) {
    call.groups[i] = groups[i];
    call.aligned[i] = is_aligned(groups[i]);
    call.inverse[i] = inverse_width(groups[i]);
    const int64_t rows = rows_of_block(groups[i]);
    call.first[i + 1] = call.first[i] + (groups[i].count + rows - 1) / rows;
  }
  const auto blocks = static_cast<unsigned>(call.first[count]);
  DeviceBuffer<Found> parts(blocks, stream);
  launch(adam_kernel, blocks, kThreads, 0, stream, call, parts.data());
  launch(sums_kernel, static_cast<unsigned>(count), kSumThreads, 0, stream, call, parts.data(), sums);
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
