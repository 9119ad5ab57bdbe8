// Computes gradients of the scene, poses, lenses and colours from the sums over pixels on the device. A thread for each
// scene and Gaussian processes all views of the scene, so that no two threads add to the same value.
#include "common/cuda/launch.h"
#include "gaussians/cuda/receivers.cuh"

namespace lumigrad::gaussians {
namespace {

// Through 1 / depth, too.
__device__ inline float depth_gradient(const Pair<float>& v, const Pose& pose, const Triple<float>& mean) {
  if (v.y == 0.0f) return v.x;
  const Triple<float> z = {pose.rotation[6], pose.rotation[7], pose.rotation[8]};
  const float inverse = 1.0f / (dot(z, mean) + pose.translation[2]);
  return fma(-v.y, inverse * inverse, v.x);
}

template <Lens kLens, bool kCovariance>
__global__ void __launch_bounds__(kGaussianThreads)
    gaussians_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                     const __grid_constant__ Upstream up, const __grid_constant__ CudaRows rows,
                     const __grid_constant__ Gradients to, double* block_sums, bool add) {
  const GaussianPlace place = gaussian_place(call);
  const bool present = place.number >= 0, extra = up.d_means2d != nullptr;
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + place.number;
  Gaussian<float> gaussian{};
  if (present) gaussian = gaussian_of<kCovariance>(call.scene, index);
  Received<kCovariance> received;
  bool touched = false;
  for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
    const int view = call.scene_views[i];
    if (call.lenses[view] != static_cast<int32_t>(kLens)) continue;
    float sums[block_sum::kFields] = {};
    bool receives = false;
    if (present) {
      const Receiver from(call, records, rows, extra, view, place.number);
      receives = from.receives;
      Pair<float> mean2d{0.0f, 0.0f};
      if (receives) {
        const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
        auto pixel = pixel_sums(from, up);
        pixel.depth = depth_gradient(depth_sums(from, records.features), pose, gaussian.mean);
        Triple<float> v_h;
        const auto g = project_backward<kLens, kCovariance>(call.view[view], pose, call.settings, gaussian, pixel, v_h);
        received.add(g);
        mean2d = g.mean2d;
        if (block_sums != nullptr) fill_block_sums(g, v_h, gaussian.mean, sums);
      }
      touched |= receives && extra;
      write_means2d(to, from, mean2d, {from.row[gradient_row::kAbsX], from.row[gradient_row::kAbsY]});
    }
    if (block_sums != nullptr && __syncthreads_or(receives)) {
      double* of_block = block_sums + (static_cast<int64_t>(view) * call.blocks + place.block) * block_sum::kFields;
      put_block_sums(sums, block_sum::kRotation, block_sum::kEye, of_block);
    }
  }
  if (!present) return;
  received.write(to, index, add);
  if (touched) to.touched[index] = 1;
}

}  // namespace

void cuda_project_backward(const CudaCallData& data, const CudaRecords& records, const Upstream& upstream,
                           const CudaRows& rows, const Gradients& gradients, double* block_sums, cudaStream_t stream) {
  const CudaCall& call = data.call();
  bool add = false;
  each_lens(data, [&](auto lens, auto covariance) {
    launch(gaussians_kernel<decltype(lens)::value, decltype(covariance)::value>,
           static_cast<unsigned>(call.scene.scenes * call.blocks), kGaussianThreads, 0, stream, call, records, upstream,
           rows, gradients, block_sums, add);
    add = true;
  });
}

// Gradients of colours, or of spherical harmonics and their direction.
namespace {

// Gradients of colours that are given for each view.
__global__ void __launch_bounds__(kGaussianThreads)
    view_colors_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                       const __grid_constant__ CudaRows rows, float* to) {
  const GaussianPlace place = gaussian_place(call);
  if (place.number < 0) return;
  const Receiver from(call, records, rows, false, place.outer, place.number);
  const int channels = call.scene.channels;
  for (int c = 0; c < channels; ++c) to[from.item * channels + c] = from.receives ? from.feature(c) : 0.0f;
}

// Gradients of colours that all views share.
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

// The terms of one view: writes or adds those of the coefficients' gradients, and returns that of the mean's gradient.
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
    // A colour that was clamped at 0 has no gradient.
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

// Sets the gradients of the coefficients from number `begin` on to 0.
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
