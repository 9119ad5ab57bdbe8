// Computes gradients of the scene, poses and lenses from the sums over pixels on the device, and gradients of spherical
// harmonics that can be staged. A thread for each scene and Gaussian processes all views of the scene, so that no two
// threads add to the same value.
#include <type_traits>

#include "common/cuda/launch.h"
#include "gaussians/cuda/colors/gradients.cuh"

namespace lumigrad::gaussians {
namespace {

// The gradient of the depth, including the gradient through 1 / depth.
__device__ inline float depth_gradient(const Pair<float>& v, const Pose& pose, const Triple<float>& mean) {
  if (v.y == 0.0f) return v.x;
  const Triple<float> z = {pose.rotation[6], pose.rotation[7], pose.rotation[8]};
  const float inverse = 1.0f / (dot(z, mean) + pose.translation[2]);
  return fma(-v.y, inverse * inverse, v.x);
}

// The gradient of a Gaussian through its projection in a view, and `v_h`, the gradient of Inria's h.
template <Lens kLens, bool kCovariance>
__device__ inline GaussianGradient<float> view_gradient(const CudaCall& call, const CudaRecords& records,
                                                        const Upstream& up, const Receiver& from, int view,
                                                        const Pose& pose, const Gaussian<float>& gaussian,
                                                        Triple<float>& v_h) {
  PixelSums<float> pixel = pixel_sums(from, up);
  pixel.depth = depth_gradient(depth_sums(from, records.features), pose, gaussian.mean);
  return project_backward<kLens, kCovariance>(call.view[view], pose, call.settings, gaussian, pixel, v_h);
}

// For kernels that leave the gradients of colours to cuda_colors_backward.
struct WithoutColors {
  __device__ WithoutColors(const CudaCall&, int64_t, bool, float*) {}
};

// `Row` is SharedRow in kernels that also write the gradients of spherical harmonics. Four blocks per multiprocessor
// leave a thread 128 registers.
template <Lens kLens, bool kCovariance, class Row = WithoutColors>
__global__ void __launch_bounds__(kGaussianThreads, 4)
    gaussians_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                     const __grid_constant__ Upstream up, const __grid_constant__ CudaRows rows,
                     const __grid_constant__ Gradients to, double* block_sums, bool add) {
  constexpr bool kColors = !std::is_same_v<Row, WithoutColors>;
  const GaussianPlace place = gaussian_place(call);
  const bool present = place.number >= 0, extra = up.d_means2d != nullptr;
  // Lanes without a Gaussian compute unused values.
  const int number = ::max(place.number, 0);
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + number;
  const Gaussian<float> gaussian = gaussian_of<kCovariance>(call.scene, index);
  Row row(call, index, present, to.sh);
  Received<kCovariance> received;
  Triple<float> through_colors{};  // The part of the mean's gradient through colours.
  bool touched = false;
  for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
    const int view = call.scene_views[i];
    if (call.lenses[view] != static_cast<int32_t>(kLens)) continue;
    float sums[block_sum::kFields] = {};
    const Receiver from(call, records, rows, extra, view, place);
    const bool receives = present && from.receives;
    const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
    Triple<float> through_color{};  // The mean's gradient through the colour in this view.
    if constexpr (kColors) {
      const bool colored = receives && (!extra || from.has_sums());
      const SeenGaussian seen{records, from, direction_to(pose, gaussian.mean), colored};
      if (to.sh_factors != nullptr && present) write_factors(seen, to.sh_factors + index * kShFactors);
      through_color = row.add_view(seen);
    }
    Pair<float> mean2d{0.0f, 0.0f};
    if (receives) {
      Triple<float> v_h;
      const auto g = view_gradient<kLens, kCovariance>(call, records, up, from, view, pose, gaussian, v_h);
      received.add(g);
      if constexpr (kColors) through_colors = through_colors + through_color;
      mean2d = g.mean2d;
      if (block_sums != nullptr) {
        fill_block_sums(g, v_h, gaussian.mean, sums);
        if constexpr (kColors) fill_eye_sums(through_color, sums);
      }
    }
    touched |= receives && extra;
    if (present) write_means2d(to, from, mean2d, {from.row[gradient_row::kAbsX], from.row[gradient_row::kAbsY]});
    if (block_sums != nullptr && __syncthreads_or(receives)) {
      double* of_block = block_sums + (static_cast<int64_t>(view) * call.blocks + place.block) * block_sum::kFields;
      put_block_sums(sums, block_sum::kRotation, kColors ? block_sum::kFields : block_sum::kEye, of_block);
    }
  }
  if constexpr (kColors) row.finish();
  if (!present) return;
  if constexpr (kColors) received.mean = received.mean + through_colors;
  received.write(to, index, add);
  if (touched) to.touched[index] = 1;
}

// Kernels for each degree exist only for the usual scenes and views, not for every lens.
auto coloring_kernel(int degree) {
  auto kernel = &gaussians_kernel<Lens::pinhole, false>;
  with_staged_degree(degree, [&](auto constant) {
    kernel = &gaussians_kernel<Lens::pinhole, false, SharedRow<decltype(constant)::value>>;
  });
  return kernel;
}

}  // namespace

bool cuda_project_backward(const CudaCallData& data, const CudaRecords& records, const Upstream& upstream,
                           const CudaRows& rows, const Gradients& gradients, double* block_sums, cudaStream_t stream) {
  const CudaCall& call = data.call();
  const auto blocks = static_cast<unsigned>(call.scene.scenes * call.blocks);
  const bool wanted =
      gradients.sh != nullptr || gradients.sh_factors != nullptr || gradients.means != nullptr || block_sums != nullptr;
  if (wanted && records.features.colors > 0 && call.scene.sh != nullptr && call.scene.covariances == nullptr &&
      data.has_only(Lens::pinhole) && call.settings.sh_degree <= kMaxStagedDegree &&
      can_stage(call.scene, gradients.sh)) {
    launch(coloring_kernel(call.settings.sh_degree), blocks, kGaussianThreads, 0, stream, call, records, upstream, rows,
           gradients, block_sums, false);
    return true;
  }
  bool add = false;
  each_lens(data, [&](auto lens, auto covariance) {
    launch(gaussians_kernel<decltype(lens)::value, decltype(covariance)::value>, blocks, kGaussianThreads, 0, stream,
           call, records, upstream, rows, gradients, block_sums, add);
    add = true;
  });
  return false;
}

}  // namespace lumigrad::gaussians
