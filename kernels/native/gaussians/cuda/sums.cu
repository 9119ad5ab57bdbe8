// Sums in a fixed order: over pixels for the background, over blocks of Gaussians.
#include "common/cuda/launch.h"
#include "common/cuda/primitives.cuh"
#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / block_sum::kFields;
// The number of parts of a view's pixels, with a block of threads each.
constexpr int kParts = 128;

// Sums the final transmittance times the gradient of the colour, with a block per part of a view's pixels.
__global__ void __launch_bounds__(kThreads)
    background_kernel(Upstream up, int channels, int64_t pixels, double* partial) {
  const int64_t view = blockIdx.x / kParts, part = blockIdx.x % kParts;
  const int64_t begin = pixels * part / kParts, end = pixels * (part + 1) / kParts;
  for (int c = 0; c < channels; ++c) {
    double sum = 0.0;
    for (int64_t p = begin + threadIdx.x; p < end; p += kThreads) {
      const int64_t index = view * pixels + p;
      sum += static_cast<double>(up.transmittance[index]) * static_cast<double>(up.d_color[index * channels + c]);
    }
    sum = block_total<kThreads>(sum);
    if (threadIdx.x == 0) partial[static_cast<int64_t>(blockIdx.x) * channels + c] = sum;
  }
}

__global__ void background_total_kernel(const double* partial, int channels, int values, float* background) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= values) return;
  const int64_t view = i / channels, c = i % channels;
  double sum = 0.0;
  for (int part = 0; part < kParts; ++part) sum += partial[(view * kParts + part) * channels + c];
  background[i] = static_cast<float>(sum);
}

// Sums over the blocks of a view and slice, with a lane per field; the warps share the blocks.
__global__ void __launch_bounds__(kThreads)
    slices_kernel(const __grid_constant__ CudaCall call, const double* block_sums, double* slice_sums) {
  __shared__ SharedArray<double, kThreads> partial;
  const int view = static_cast<int>(blockIdx.x) / call.scene.slices,
            slice = static_cast<int>(blockIdx.x) % call.scene.slices;
  const int group = static_cast<int>(threadIdx.x) / block_sum::kFields;
  const int field = static_cast<int>(threadIdx.x) % block_sum::kFields;
  double sum = 0.0;
  for (int b = call.slice_blocks[slice] + group; b < call.slice_blocks[slice + 1]; b += kGroups) {
    sum += block_sums[(static_cast<int64_t>(view) * call.blocks + b) * block_sum::kFields + field];
  }
  partial[static_cast<int>(threadIdx.x)] = sum;
  __syncthreads();
  if (group > 0) return;
  for (int g = 1; g < kGroups; ++g) sum += partial[g * block_sum::kFields + field];
  slice_sums[static_cast<int64_t>(blockIdx.x) * block_sum::kFields + field] = sum;
}

// Writes the gradients of each slice's pose and of the view, with a thread per view.
__global__ void views_kernel(const __grid_constant__ CudaCall call, const double* slice_sums, Gradients to) {
  const int view = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (view >= call.views) return;
  constexpr int kIntrinsics = block_sum::kIntrinsics, kEye = block_sum::kEye, kOfView = kEye - kIntrinsics;
  double of_view[kOfView] = {};
  for (int g = 0; g < call.scene.slices; ++g) {
    const int64_t row = static_cast<int64_t>(view) * call.scene.slices + g;
    const double* sums = slice_sums + row * block_sum::kFields;
    for (int i = 0; i < kOfView; ++i) of_view[i] += sums[kIntrinsics + i];
    for (int i = 0; to.normals != nullptr && i < kRotationFloats; ++i) {
      to.normals[row * kRotationFloats + i] = sums[block_sum::kProjection + i];
    }
    if (to.poses == nullptr) continue;
    double* pose = to.poses + row * kPoseSums;
    for (int i = 0; i < kIntrinsics; ++i) pose[i] = sums[i];
    for (int i = 0; i < 3; ++i) pose[kIntrinsics + i] = sums[kEye + i];
    const bool moves = call.scene.slice_poses[g].moving >= 0;
    for (int i = 0; i < kSliceMotionSums; ++i) pose[kPoseFloats + i] = moves ? sums[block_sum::kMotion + i] : 0.0;
  }
  for (int i = 0; to.intrinsics != nullptr && i < 4; ++i) to.intrinsics[4 * view + i] = of_view[i];
  for (int i = 0; to.projection != nullptr && i < 12; ++i) to.projection[12 * view + i] = of_view[4 + i];
}

}  // namespace

void cuda_background_backward(const CudaCall& call, const Upstream& upstream, float* background, cudaStream_t stream) {
  const int channels = call.scene.channels, values = call.views * channels;
  if (upstream.d_color == nullptr) {
    check(cudaMemsetAsync(background, 0, sizeof(float) * values, stream), "clearing a gradient");
    return;
  }
  const auto parts = static_cast<unsigned>(call.views * kParts);
  DeviceBuffer<double> partial(static_cast<std::size_t>(parts) * channels, stream);
  launch(background_kernel, parts, kThreads, 0, stream, upstream, channels,
         static_cast<int64_t>(call.width) * call.height, partial.data());
  launch(background_total_kernel, blocks_for(static_cast<std::size_t>(values), kThreads), kThreads, 0, stream,
         partial.data(), channels, values, background);
}

void cuda_sum_blocks(const CudaCall& call, const double* block_sums, const Gradients& gradients, cudaStream_t stream) {
  const auto slices = static_cast<unsigned>(call.views * call.scene.slices);
  DeviceBuffer<double> slice_sums(static_cast<std::size_t>(slices) * block_sum::kFields, stream);
  launch(slices_kernel, slices, kThreads, 0, stream, call, block_sums, slice_sums.data());
  launch(views_kernel, blocks_for(static_cast<std::size_t>(call.views), kThreads), kThreads, 0, stream, call,
         slice_sums.data(), gradients);
}

}  // namespace lumigrad::gaussians
