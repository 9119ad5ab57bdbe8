// Computes gradients of colours, or of spherical harmonics and their direction, from the sums over pixels on the
// device, unless the kernels of project_backward.cu do.
#include "common/cuda/launch.h"
#include "gaussians/cuda/colors/gradients.cuh"

namespace lumigrad::gaussians {
namespace {

// Writes the gradients of colours that are given per view.
__global__ void __launch_bounds__(kGaussianThreads)
    view_colors_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                       const __grid_constant__ CudaRows rows, float* to) {
  const GaussianPlace place = gaussian_place(call);
  if (place.number < 0) return;
  const Receiver from(call, records, rows, false, place.outer, place);
  const int channels = call.scene.channels;
  for (int c = 0; c < channels; ++c) to[int64_t{from.item} * channels + c] = from.receives ? from.feature(c) : 0.0f;
}

// Writes the gradients of colours that all views share.
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
      const Receiver from(call, records, rows, false, call.scene_views[i], place);
      if (from.receives) sum += from.feature(c);
    }
    to[index * channels + c] = sum;
  }
}

template <class Row>
__global__ void __launch_bounds__(kGaussianThreads)
    harmonics_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                     const __grid_constant__ CudaRows rows, float* to_sh, float* to_factors, float* to_means,
                     double* block_sums) {
  const GaussianPlace place = gaussian_place(call);
  const bool present = place.number >= 0;
  // Lanes without a Gaussian compute unused values.
  const int number = ::max(place.number, 0);
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + number;
  Row row(call, index, present, to_sh);
  Triple<float> mean{};
  bool received = false;
  for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
    const int view = call.scene_views[i];
    const Receiver from(call, records, rows, false, view, place);
    const bool receives = present && from.receives;
    const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
    const SeenGaussian seen{records, from, direction_to(pose, mean_of(call.scene, index)), receives};
    if (to_factors != nullptr && present) write_factors(seen, to_factors + index * kShFactors);
    const auto v = row.add_view(seen);
    if (receives) mean = mean + v;
    received |= receives;
    if (block_sums != nullptr && __syncthreads_or(receives)) {
      float sums[block_sum::kFields] = {};
      if (receives) fill_eye_sums(v, sums);
      double* of_block = block_sums + (static_cast<int64_t>(view) * call.blocks + place.block) * block_sum::kFields;
      put_block_sums(sums, block_sum::kEye, block_sum::kFields, of_block);
    }
  }
  row.finish();
  if (!received || to_means == nullptr) return;
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
  const bool factors = gradients.sh_factors != nullptr;
  if (gradients.sh == nullptr && !factors && gradients.means == nullptr && block_sums == nullptr) return;
  auto kernel = &harmonics_kernel<OwnRow>;
  if (can_stage(call.scene, gradients.sh)) {
    with_staged_degree(call.settings.sh_degree,
                       [&](auto degree) { kernel = &harmonics_kernel<SharedRow<decltype(degree)::value>>; });
  }
  launch(kernel, scenes, kGaussianThreads, 0, stream, call, records, rows, gradients.sh, gradients.sh_factors,
         gradients.means, block_sums);
}

}  // namespace lumigrad::gaussians
