// From sums over pixels to gradients of colours or of spherical harmonics and their direction, on the device: a thread
// per scene and Gaussian goes through the scene's views.
#include "common/launch.h"
#include "gaussians/cuda_harmonics.cuh"
#include "gaussians/cuda_receivers.cuh"

namespace lumigrad::gaussians {
namespace {

// Of colours that are given for each view.
__global__ void __launch_bounds__(kGaussianThreads)
    view_colors_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                       const __grid_constant__ CudaRows rows, float* to) {
  const GaussianPlace place = gaussian_place(call);
  if (place.number < 0) return;
  const Receiver from(call, records, rows, false, place.outer, place.number);
  const int channels = call.scene.channels;
  for (int c = 0; c < channels; ++c) to[from.item * channels + c] = from.receives ? from.feature(c) : 0.0f;
}

// Of colours that all views share.
__global__ void __launch_bounds__(kGaussianThreads)
    scene_colors_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                        const __grid_constant__ CudaRows rows, float* to) {
  const GaussianPlace place = gaussian_place(call);
  if (place.number < 0) return;
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + place.number;
  const int channels = call.scene.channels;
  for (int c = 0; c < channels; ++c) {
    float sum = 0.0f;
    for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
      const Receiver from(call, records, rows, false, call.scene_views[i], place.number);
      if (from.receives) sum += from.feature(c);
    }
    to[index * channels + c] = sum;
  }
}

// One view's part: writes or adds to the coefficients' gradients, and returns that of the mean.
template <int kDegree>
__device__ inline Triple<float> harmonics_backward(const CudaCall& call, const CudaRecords& records,
                                                   const Receiver& from, const Pose& pose, int64_t index, bool add,
                                                   float* to_sh) {
  const int channels = call.scene.channels;
  const int64_t row = index * call.scene.coefficients * channels;
  const float* sh = call.scene.sh + row;
  const float* color = records.features_of(from.item);
  const auto direction = direction_to(pose, mean_of(call.scene, index));
  const Harmonics<kDegree> harmonics(direction.d);
  float along[kHarmonics<kDegree>] = {};
  for (int c = 0; c < channels; ++c) {
    // Nothing goes through a colour that was cut off at 0.
    const float v = color[c] > 0.0f ? from.feature(c) : 0.0f;
#pragma unroll
    for (int k = 0; k < kHarmonics<kDegree>; ++k) {
      along[k] = fma(sh[k * channels + c], v, along[k]);
      if (to_sh != nullptr) put(to_sh + row + k * channels + c, harmonics.value[k] * v, add);
    }
  }
  Triple<float> slope{};
  each_harmonic<kDegree>(direction.d, [&](int k, float, const Triple<float>& g) {
    slope = {fma(g.x, along[k], slope.x), fma(g.y, along[k], slope.y), fma(g.z, along[k], slope.z)};
  });
  return direction_backward(direction, slope);
}

// Coefficients from `begin` on receive nothing.
__device__ inline void clear_coefficients(const Scene& scene, int64_t index, int begin, float* to_sh) {
  if (to_sh == nullptr) return;
  float* row = to_sh + index * scene.coefficients * scene.channels;
  for (int i = begin * scene.channels; i < scene.coefficients * scene.channels; ++i) row[i] = 0.0f;
}

template <int kDegree>
__global__ void __launch_bounds__(kGaussianThreads)
    harmonics_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                     const __grid_constant__ CudaRows rows, float* to_sh, float* to_means, double* block_sums) {
  const GaussianPlace place = gaussian_place(call);
  const bool present = place.number >= 0;
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + place.number;
  Triple<float> mean{};
  bool written = false;
  for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
    const int view = call.scene_views[i];
    float sums[block_sum::kFields] = {};
    bool receives = false;
    if (present) {
      const Receiver from(call, records, rows, false, view, place.number);
      receives = from.receives;
      if (receives) {
        const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
        const auto v = harmonics_backward<kDegree>(call, records, from, pose, index, written, to_sh);
        written = true;
        mean = mean + v;
        sums[block_sum::kEye] = -v.x;
        sums[block_sum::kEye + 1] = -v.y;
        sums[block_sum::kEye + 2] = -v.z;
      }
    }
    if (block_sums != nullptr && __syncthreads_or(receives)) {
      double* of_block = block_sums + (static_cast<int64_t>(view) * call.blocks + place.block) * block_sum::kFields;
      put_block_sums(sums, block_sum::kEye, block_sum::kFields, of_block);
    }
  }
  if (!present) return;
  clear_coefficients(call.scene, index, written ? kHarmonics<kDegree> : 0, to_sh);
  if (to_means == nullptr || !written) return;
  put(to_means + 3 * index, mean.x, true);
  put(to_means + 3 * index + 1, mean.y, true);
  put(to_means + 3 * index + 2, mean.z, true);
}

}  // namespace

void cuda_colors_backward(const CudaCall& call, const CudaRecords& records, const CudaRows& rows,
                          const Gradients& gradients, double* block_sums, cudaStream_t stream) {
  const auto scenes = static_cast<unsigned>(call.scene.scenes * call.blocks);
  if (call.scene.sh == nullptr) {
    if (gradients.colors == nullptr) return;
    const bool per_view = call.scene.colors_per_view != 0;
    launch(per_view ? &view_colors_kernel : &scene_colors_kernel,
           per_view ? static_cast<unsigned>(call.views * call.blocks) : scenes, kGaussianThreads, 0, stream, call,
           records, rows, gradients.colors);
    return;
  }
  if (gradients.sh == nullptr && gradients.means == nullptr && block_sums == nullptr) return;
  with_degree(call.settings.sh_degree, [&](auto degree) {
    launch(harmonics_kernel<decltype(degree)::value>, scenes, kGaussianThreads, 0, stream, call, records, rows,
           gradients.sh, gradients.means, block_sums);
  });
}

}  // namespace lumigrad::gaussians
