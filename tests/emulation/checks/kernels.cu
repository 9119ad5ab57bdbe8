// Small kernels that use the emulation's features, correctly and incorrectly.
#include "checks/kernels.h"
#include "common/cuda/primitives.cuh"

namespace lumigrad::checks {
namespace {

constexpr int kThreads = 128;

__global__ void sum_kernel(const float* values, int count, float* total) {
  __shared__ SharedArray<float, kThreads / kWarp> partial;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float of_warp = warp_sum(i < count ? values[i] : 0.0f);
  if (lane_index() == 0) partial[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (int w = 0; w < kThreads / kWarp; ++w) sum += partial[w];
    atomicAdd(total, sum);
  }
}

__global__ void scan_kernel(const int* values, int* sums) {
  __shared__ SharedArray<int, kThreads / kWarp> partial;
  const int lane = lane_index(), warp = static_cast<int>(threadIdx.x) / kWarp;
  int sum = values[threadIdx.x];
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) partial[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += partial[w];
  sums[threadIdx.x] = sum;
}

__global__ void compact_kernel(const int* values, int count, int* kept, unsigned* kept_count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bool keep = i < count && values[i] % 3 == 0;
  const unsigned votes = __ballot_sync(kWholeWarp, keep);
  unsigned begin = 0;
  if (lane_index() == 0) begin = atomicAdd(kept_count, static_cast<unsigned>(__popc(votes)));
  begin = __shfl_sync(kWholeWarp, begin, 0);
  if (keep) kept[begin + __popc(votes & lanes_below())] = values[i];
}

__global__ void warp_kernel(int* out) {
  const int lane = lane_index();
  const auto put = [&](int row, int value) { out[row * kWarp + lane] = value; };
  put(0, __shfl_sync(kWholeWarp, lane * 10, lane + 1, 8));
  put(1, __shfl_up_sync(kWholeWarp, lane * 10, 3));
  put(2, __shfl_down_sync(kWholeWarp, lane * 10, 3, 16));
  put(3, __shfl_xor_sync(kWholeWarp, lane * 10, 5));
  put(4, static_cast<int>(__ballot_sync(kWholeWarp, lane % 3 == 0)));
  put(5, __any_sync(kWholeWarp, lane == 7) * 2 + __all_sync(kWholeWarp, lane >= 0));
  put(6, static_cast<int>(__match_any_sync(kWholeWarp, lane / 4)));
  put(7, __reduce_add_sync(kWholeWarp, lane) + __reduce_min_sync(kWholeWarp, lane - 5));
  put(8, __reduce_max_sync(kWholeWarp, lane - 40) + static_cast<int>(__reduce_or_sync(kWholeWarp, 1u << lane % 4)));
  if (lane % 2 == 0) put(9, __shfl_xor_sync(0x55555555u, lane, 2));
  __syncwarp();
  float values[8];
  for (int i = 0; i < 8; ++i) values[i] = static_cast<float>(lane * i);
  put(10, static_cast<int>(warp_sums(values)));
}

__global__ void vote_kernel(int* out) {
  const int thread = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(thread % 5 == 0);
  const int any = __syncthreads_or(thread == 77), all = __syncthreads_and(thread != 77);
  out[thread] = count * 4 + any * 2 + all;
}

__global__ void atomic_kernel(int* ints, unsigned long long* wide, float* real, double* precise) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&ints[0], 1);
  atomicMax(&ints[1], i);
  atomicMin(&ints[2], -i);
  atomicCAS(&ints[3], 0, 1 + i % 7);
  atomicOr(&ints[4], 1 << i % 8);
  atomicExch(&ints[5], 9);
  atomicAdd(wide, 1ull << 32);
  atomicAdd(real, 0.5f);
  atomicAdd(precise, 0.25);
}

// Reads what another warp writes, without a barrier in between.
__global__ void race_kernel(int* out) {
  __shared__ SharedArray<int, kThreads> values;
  const int thread = static_cast<int>(threadIdx.x);
  values[thread] = thread;
  out[blockIdx.x * kThreads + thread] = values[(thread + kWarp) % kThreads];
}

__global__ void missed_barrier_kernel() {
  if (threadIdx.x < 40) __syncthreads();
}

__global__ void two_barriers_kernel() {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void missed_shuffle_kernel(int* out) {
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = __shfl_sync(kWholeWarp, 1, 0);
  } else {
    __syncthreads();
  }
}

__global__ void absent_lane_kernel(int* out) {
  if (threadIdx.x % 2 == 0) out[threadIdx.x] = __shfl_xor_sync(0x55555555u, 1, 1);
}

__global__ void foreign_mask_kernel() { __syncwarp(0x0000FFFFu); }

__global__ void out_of_range_kernel(int* out, int index) {
  __shared__ SharedArray<int, 8> values;
  values[threadIdx.x % 8] = 1;
  out[0] = values[index];
}

__global__ void dynamic_kernel(int* out, int index) {
  int* values = dynamic_shared<int>();
  const int thread = static_cast<int>(threadIdx.x);
  values[thread] = thread;
  if (thread == 0) values[index] = -5;
  __syncthreads();
  out[thread] = values[kThreads - 1 - thread];
}

// Reads shared memory that nothing wrote in this block.
__global__ void undefined_kernel(float* out, bool write) {
  __shared__ SharedArray<float, kThreads> values;
  if (write) values[threadIdx.x] = 1.0f;
  out[threadIdx.x] = values[threadIdx.x];
}

// Writes to more local memory than a thread has.
__global__ void large_frame_kernel(int* out) {
  volatile char frame[128 * 1024];
  for (char volatile& byte : frame) byte = 1;
  out[threadIdx.x] = frame[out[threadIdx.x]];
}

}  // namespace

void sum(const float* values, int count, float* total) {
  launch(sum_kernel, blocks_for(count, kThreads), kThreads, 0, nullptr, values, count, total);
}
void scan(const int* values, int* sums) { launch(scan_kernel, 1, kThreads, 0, nullptr, values, sums); }
void compact(const int* values, int count, int* kept, unsigned* kept_count) {
  launch(compact_kernel, blocks_for(count, kThreads), kThreads, 0, nullptr, values, count, kept, kept_count);
}
void warp_operations(int* out) { launch(warp_kernel, 1, kWarp, 0, nullptr, out); }
void votes(int* out) { launch(vote_kernel, 1, kThreads, 0, nullptr, out); }
void atomics(int* ints, unsigned long long* wide, float* real, double* precise) {
  launch(atomic_kernel, 8, kThreads, 0, nullptr, ints, wide, real, precise);
}
void race(int* out) { launch(race_kernel, 4, kThreads, 0, nullptr, out); }
void missed_barrier() { launch(missed_barrier_kernel, 1, kThreads, 0, nullptr); }
void two_barriers() { launch(two_barriers_kernel, 1, kThreads, 0, nullptr); }
void missed_shuffle(int* out) { launch(missed_shuffle_kernel, 1, kWarp, 0, nullptr, out); }
void absent_lane(int* out) { launch(absent_lane_kernel, 1, kWarp, 0, nullptr, out); }
void foreign_mask() { launch(foreign_mask_kernel, 1, kWarp, 0, nullptr); }
void out_of_range(int* out, int index) { launch(out_of_range_kernel, 1, kWarp, 0, nullptr, out, index); }
void dynamic(int* out, int index) { launch(dynamic_kernel, 1, kThreads, kThreads * sizeof(int), nullptr, out, index); }
void undefined(float* out, bool write) { launch(undefined_kernel, 1, kThreads, 0, nullptr, out, write); }
void large_frame(int* out) { launch(large_frame_kernel, 1, kWarp, 0, nullptr, out); }
void shape(unsigned grid, unsigned block, std::size_t shared) {
  launch(foreign_mask_kernel, grid, block, shared, nullptr);
}

}  // namespace lumigrad::checks
