// Drawing rows in proportion to their opacities, on the device.
#include "common/device_memory.h"
#include "common/device_sort.h"
#include "common/launch.h"
#include "density/cuda.h"
#include "density/math_sample.h"

namespace lumigrad::density {
namespace {

constexpr unsigned kThreads = 256;

__device__ inline int64_t row_of_thread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// Weights, and 1 for rows that have none; one more entry of each for the sums.
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(const float* opacities, int32_t count, float minimum, uint64_t* weights, uint32_t* without) {
  const int64_t row = row_of_thread();
  if (row > count) return;
  const uint64_t weight = row < count ? weight_of(opacities[row], minimum) : 0;
  weights[row] = weight;
  without[row] = row < count && weight == 0;
}

__global__ void __launch_bounds__(kThreads) exclude_kernel(const uint32_t* places, int32_t count, Weights to) {
  const int64_t row = row_of_thread();
  if (row == 0) to.excluded_count[0] = static_cast<int32_t>(places[count]);
  if (row < count && places[row + 1] > places[row]) to.excluded[places[row]] = static_cast<int32_t>(row);
}

__global__ void __launch_bounds__(kThreads) sample_kernel(Sample sample, Draw draw) {
  const int64_t number = row_of_thread();
  if (number >= sample.draws) return;
  const int32_t row = row_of_draw(sample.sums, sample.count, draw, static_cast<uint32_t>(number));
  sample.rows[number] = row;
  atomicAdd(sample.shares + row, 1);
}

}  // namespace

void cuda_weigh(const float* opacities, int32_t count, float minimum, const Weights& to, cudaStream_t stream) {
  const auto entries = static_cast<std::size_t>(count) + 1;
  DeviceBuffer<uint32_t> places(entries, stream);
  const unsigned blocks = blocks_for(entries, kThreads);
  launch(weigh_kernel, blocks, kThreads, 0, stream, opacities, count, minimum, to.sums, places.data());
  exclusive_sum(to.sums, to.sums, count + 1, stream);
  exclusive_sum(places.data(), places.data(), count + 1, stream);
  launch(exclude_kernel, blocks, kThreads, 0, stream, places.data(), count, to);
}

void cuda_sample_rows(const Sample& sample, const Draw& draw, cudaStream_t stream) {
  const unsigned blocks = blocks_for(static_cast<std::size_t>(sample.draws), kThreads);
  launch(sample_kernel, blocks, kThreads, 0, stream, sample, draw);
}

}  // namespace lumigrad::density
