// Losses of planes other than colours, and exposures of colours.
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "training/cuda/engine.h"
#include "training/cuda/plane.cuh"

namespace lumigrad::training {
namespace {

constexpr int kThreads = 256;
constexpr int kPixels = 2048;  // Per block.

unsigned blocks_of(int64_t pixels) { return blocks_for(static_cast<std::size_t>(pixels), kPixels); }

__device__ inline int64_t begin_of_block() { return int64_t{blockIdx.x} * kPixels + threadIdx.x; }

__device__ inline int64_t end_of_block(int64_t pixels) {
  const int64_t end = (int64_t{blockIdx.x} + 1) * kPixels;
  return end < pixels ? end : pixels;
}

__device__ inline bool counts(const PlaneLoss& view, int64_t at) {
  const float target = plane_at(view.target, at);
  return !view.known || (isfinite(target) && target > 0.0f);
}

__global__ void __launch_bounds__(kThreads) count_kernel(PlaneLoss view, double* parts) {
  double found = 0.0;
  for (int64_t i = begin_of_block(); i < end_of_block(view.pixels); i += kThreads) found += counts(view, i) ? 1.0 : 0.0;
  found = block_total<kThreads>(found);
  if (threadIdx.x == 0) parts[blockIdx.x] = found;
}

// `values` are the values of all views, with their counts.
__global__ void __launch_bounds__(kThreads)
    compare_kernel(PlaneLoss view, const double* values, int views, double* parts) {
  double all = 0.0;
  for (int v = 0; v < views; ++v) all += values[v * kPlaneValues + kCounted];
  const float counted = static_cast<float>(all > 1.0 ? all : 1.0);
  double sum = 0.0;
  for (int64_t i = begin_of_block(); i < end_of_block(view.pixels); i += kThreads) {
    const float difference = counts(view, i) ? view.plane[i] - plane_at(view.target, i) : 0.0f;
    const float sign = static_cast<float>((difference > 0.0f) - (difference < 0.0f));
    view.gradient[i] = view.weight * (sign / counted);
    sum += static_cast<double>(fabsf(difference));
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Sums the parts [count, values] of each value, with a block per value.
template <class T>
__global__ void __launch_bounds__(kThreads) total_kernel(const double* parts, int64_t count, T* to) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[i * gridDim.x + blockIdx.x];
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) to[blockIdx.x] = static_cast<T>(sum);
}

__global__ void __launch_bounds__(kThreads) expose_kernel(Exposure view) {
  const float* m = view.matrix;
  for (int64_t i = begin_of_block(); i < end_of_block(view.pixels); i += kThreads) {
    const float* from = view.image + 3 * i;
    for (int j = 0; j < 3; ++j) {
      view.exposed[3 * i + j] = m[4 * j] * from[0] + m[4 * j + 1] * from[1] + m[4 * j + 2] * from[2] + m[4 * j + 3];
    }
  }
}

// `parts` are [blocks, kExposure].
__global__ void __launch_bounds__(kThreads) expose_backward_kernel(Exposure view, double* parts) {
  const float* m = view.matrix;
  double found[kExposure] = {};
  for (int64_t i = begin_of_block(); i < end_of_block(view.pixels); i += kThreads) {
    const float* from = view.image + 3 * i;
    float* gradient = view.exposed + 3 * i;
    const float g[3] = {gradient[0], gradient[1], gradient[2]};
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 3; ++k) found[4 * j + k] += static_cast<double>(g[j]) * static_cast<double>(from[k]);
      found[4 * j + 3] += static_cast<double>(g[j]);
    }
    for (int k = 0; k < 3; ++k) gradient[k] = m[k] * g[0] + m[4 + k] * g[1] + m[8 + k] * g[2];
  }
  for (int k = 0; k < kExposure; ++k) {
    const double sum = block_total<kThreads>(found[k]);
    if (threadIdx.x == 0) parts[int64_t{blockIdx.x} * kExposure + k] = sum;
  }
}

// Runs a thread per number of a matrix.
__global__ void center_kernel(float* matrices, int64_t views) {
  const int k = static_cast<int>(threadIdx.x);
  double sum = 0.0;
  for (int64_t v = 0; v < views; ++v) sum += static_cast<double>(matrices[v * kExposure + k]);
  const float shift = static_cast<float>((k % 5 == 0 ? 1.0 : 0.0) - sum / static_cast<double>(views));
  for (int64_t v = 0; v < views; ++v) matrices[v * kExposure + k] += shift;
}

}  // namespace

DeviceTimer cuda_plane_loss(const std::vector<PlaneLoss>& views, double* values, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const unsigned blocks = blocks_of(views[0].pixels);
  const DeviceBuffer<double> parts(blocks, stream);
  double* to = values;
  for (const PlaneLoss& view : views) {
    launch(count_kernel, blocks, kThreads, 0, stream, view, parts.data());
    launch(total_kernel<double>, 1, kThreads, 0, stream, parts.data(), int64_t{blocks}, to + kCounted);
    to += kPlaneValues;
  }
  to = values;
  for (const PlaneLoss& view : views) {
    launch(compare_kernel, blocks, kThreads, 0, stream, view, values, static_cast<int>(views.size()), parts.data());
    launch(total_kernel<double>, 1, kThreads, 0, stream, parts.data(), int64_t{blocks}, to + kDifferences);
    to += kPlaneValues;
  }
  timer.mark("plane_loss");
  return timer;
}

void cuda_expose(const Exposure& view, cudaStream_t stream) {
  launch(expose_kernel, blocks_of(view.pixels), kThreads, 0, stream, view);
}

void cuda_expose_backward(const Exposure& view, float* matrix, cudaStream_t stream) {
  const unsigned blocks = blocks_of(view.pixels);
  const DeviceBuffer<double> parts(std::size_t{blocks} * kExposure, stream);
  launch(expose_backward_kernel, blocks, kThreads, 0, stream, view, parts.data());
  launch(total_kernel<float>, kExposure, kThreads, 0, stream, parts.data(), int64_t{blocks}, matrix);
}

void cuda_center_exposures(float* matrices, int64_t views, cudaStream_t stream) {
  launch(center_kernel, 1, kExposure, 0, stream, matrices, views);
}

}  // namespace lumigrad::training
