// Sums over rows: means of values, and the number of touched rows.
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "training/cuda/engine.h"

namespace lumigrad::training {
namespace {

constexpr int kThreads = 256;

__device__ inline int64_t first_of_block() { return int64_t{blockIdx.x} * kSummed; }

__device__ inline int64_t end_of_block(int64_t count) {
  const int64_t end = first_of_block() + kSummed;
  return end < count ? end : count;
}

// Runs a block per kSummed values.
__global__ void __launch_bounds__(kThreads) mean_kernel(Mean values, double* parts) {
  const int64_t end = end_of_block(values.count);
  double sum = 0.0;
  for (int64_t i = first_of_block() + threadIdx.x; i < end; i += kThreads) {
    sum += static_cast<double>(values.values[i]);
    if (values.gradient != nullptr) values.gradient[i] += values.slope;
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Runs a block per kSummed rows.
__global__ void __launch_bounds__(kThreads)
    touched_kernel(const int32_t* touched, int64_t count, uint8_t* rows, double* parts) {
  const int64_t end = end_of_block(count);
  double sum = 0.0;
  for (int64_t i = first_of_block() + threadIdx.x; i < end; i += kThreads) {
    const bool is_touched = touched[i] != 0;
    sum += is_touched ? 1.0 : 0.0;
    if (rows != nullptr) rows[i] = is_touched ? 1 : 0;
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Sums all parts in one block, and divides by `over`.
__global__ void __launch_bounds__(kThreads) parts_kernel(const double* parts, int64_t count, double over, double* to) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) *to = sum / over;
}

}  // namespace

DeviceTimer cuda_mean(const Mean& values, double* to, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const unsigned blocks = blocks_for(static_cast<std::size_t>(values.count), kSummed);
  const DeviceBuffer<double> parts(blocks, stream);
  launch(mean_kernel, blocks, kThreads, 0, stream, values, parts.data());
  launch(parts_kernel, 1, kThreads, 0, stream, parts.data(), int64_t{blocks}, static_cast<double>(values.count), to);
  timer.mark("mean");
  return timer;
}

void cuda_count_touched(const int32_t* touched, int64_t count, uint8_t* rows, double* to, cudaStream_t stream) {
  const unsigned blocks = blocks_for(static_cast<std::size_t>(count), kSummed);
  const DeviceBuffer<double> parts(blocks, stream);
  launch(touched_kernel, blocks, kThreads, 0, stream, touched, count, rows, parts.data());
  launch(parts_kernel, 1, kThreads, 0, stream, parts.data(), int64_t{blocks}, 1.0, to);
}

}  // namespace lumigrad::training
