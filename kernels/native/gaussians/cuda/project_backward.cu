// Computes gradients of the scene, poses, lenses and colours from the sums over pixels on the device. A thread for each
// scene and Gaussian processes all views of the scene, so that no two threads add to the same value.
#include "common/cuda/launch.h"
#include "gaussians/cuda/receivers.cuh"
#include "gaussians/cuda/sh_rows.cuh"

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

// A Gaussian in a view, for the gradients of harmonics.
struct SeenGaussian {
  const CudaRecords& records;
  const Receiver& from;
  const Direction<float> direction;
  bool receives;

  // A colour that was clamped at 0 has no gradient.
  __device__ float gradient(int channel) const {
    return records.features_of(from.item)[channel] > 0.0f ? from.feature(channel) : 0.0f;
  }
};

// Writes Gradients::sh_factors of a Gaussian.
__device__ inline void write_factors(const SeenGaussian& seen, float* to) {
  const Triple<float>& d = seen.direction.d;
  to[0] = seen.receives ? d.x : 0.0f;
  to[1] = seen.receives ? d.y : 0.0f;
  to[2] = seen.receives ? d.z : 0.0f;
#pragma unroll
  for (int c = 0; c < kStagedChannels; ++c) to[3 + c] = seen.receives ? seen.gradient(c) : 0.0f;
}

// The gradients of a lane's coefficients, which it accesses on its own.
template <int kDegree>
struct OwnRow {
  const float* sh;
  float* to;
  int channels, width;
  bool present, written = false;

  __device__ OwnRow(const Scene& scene, int64_t index, bool is_present, float* to_sh)
      : channels(scene.channels), width(scene.coefficients * scene.channels), present(is_present) {
    sh = scene.sh + index * width;
    to = to_sh == nullptr ? nullptr : to_sh + index * width;
  }

  // The terms of one view: writes or adds those of the coefficients' gradients, and returns that of the mean's.
  __device__ Triple<float> add_view(const SeenGaussian& seen) {
    if (!seen.receives) return {};
    const Harmonics<kDegree> harmonics(seen.direction.d);
    float along[kHarmonics<kDegree>] = {};
    for (int c = 0; c < channels; ++c) {
      const float v = seen.gradient(c);
#pragma unroll
      for (int k = 0; k < kHarmonics<kDegree>; ++k) {
        along[k] = fma(sh[k * channels + c], v, along[k]);
        if (to != nullptr) put(to + k * channels + c, harmonics.value[k] * v, written);
      }
    }
    written = true;
    Triple<float> slope{};
    each_harmonic<kDegree>(seen.direction.d, [&](int k, float, const Triple<float>& g) {
      slope = {fma(g.x, along[k], slope.x), fma(g.y, along[k], slope.y), fma(g.z, along[k], slope.z)};
    });
    return direction_backward(seen.direction, slope);
  }

  // Sets the gradients of coefficients that no view has written to 0.
  __device__ void finish() const {
    if (!present || to == nullptr) return;
    for (int i = written ? kHarmonics<kDegree> * channels : 0; i < width; ++i) to[i] = 0.0f;
  }
};

// The same, of rows that the warp fetches and writes together.
template <int kDegree>
struct SharedRow {
  StagedRows<kDegree>& rows;
  unsigned present, written = 0;  // Lanes, as bits.
  WarpRows<const float4> sh;
  WarpRows<float4> to;

  __device__ SharedRow(const Scene& scene, int64_t index, bool is_present, float* to_sh)
      : rows(staged_rows<kDegree>()),
        present(__ballot_sync(kWholeWarp, is_present)),
        sh(scene.sh, __shfl_sync(kWholeWarp, index, 0), scene),
        to(to_sh, __shfl_sync(kWholeWarp, index, 0), scene) {}

  __device__ Triple<float> add_view(const SeenGaussian& seen) {
    const unsigned lanes = __ballot_sync(kWholeWarp, seen.receives);
    if (lanes == 0) return {};
    rows.load(sh, lanes);
    Triple<float> slope{};
    if (seen.receives) slope = replace_by_gradient(seen);
    if (to.first != nullptr) rows.store(to, lanes, written);
    written |= lanes;
    return direction_backward(seen.direction, slope);
  }

  __device__ void finish() {
    if (to.first == nullptr) return;
    rows.clear_behind(to, present);
    const unsigned rest = present & ~written;
    if (rest == 0) return;
    rows.fill(lane_index(), [](int, int) { return 0.0f; });
    rows.store(to, rest, 0);
  }

 private:
  // Replaces the lane's coefficients by their gradients, and returns that of the direction.
  __device__ Triple<float> replace_by_gradient(const SeenGaussian& seen) {
    float v[kStagedChannels], along[kHarmonics<kDegree>] = {};
#pragma unroll
    for (int c = 0; c < kStagedChannels; ++c) v[c] = seen.gradient(c);
    rows.each_value(lane_index(), [&](int k, int c, float value) { along[k] = fma(value, v[c], along[k]); });
    Triple<float> slope{};
    float harmonics[kHarmonics<kDegree>];
    each_harmonic<kDegree>(seen.direction.d, [&](int k, float value, const Triple<float>& g) {
      slope = {fma(g.x, along[k], slope.x), fma(g.y, along[k], slope.y), fma(g.z, along[k], slope.z)};
      harmonics[k] = value;
    });
    if (to.first != nullptr) rows.fill(lane_index(), [&](int k, int c) { return harmonics[k] * v[c]; });
    return slope;
  }
};

template <class Row>
__global__ void __launch_bounds__(kGaussianThreads)
    harmonics_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                     const __grid_constant__ CudaRows rows, float* to_sh, float* to_factors, float* to_means,
                     double* block_sums) {
  const GaussianPlace place = gaussian_place(call);
  const bool present = place.number >= 0;
  // Of lanes without a Gaussian nothing is used.
  const int number = ::max(place.number, 0);
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + number;
  Row row(call.scene, index, present, to_sh);
  Triple<float> mean{};
  bool received = false;
  for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
    const int view = call.scene_views[i];
    const Receiver from(call, records, rows, false, view, number);
    const bool receives = present && from.receives;
    const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
    const SeenGaussian seen{records, from, direction_to(pose, mean_of(call.scene, index)), receives};
    if (to_factors != nullptr && present) write_factors(seen, to_factors + index * kShFactors);
    const auto v = row.add_view(seen);
    if (receives) mean = mean + v;
    received |= receives;
    if (block_sums != nullptr && __syncthreads_or(receives)) {
      float sums[block_sum::kFields] = {};
      if (receives) {
        sums[block_sum::kEye] = -v.x;
        sums[block_sum::kEye + 1] = -v.y;
        sums[block_sum::kEye + 2] = -v.z;
      }
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
  with_degree(call.settings.sh_degree, [&](auto degree) {
    constexpr int kDegree = decltype(degree)::value;
    auto kernel = &harmonics_kernel<OwnRow<kDegree>>;
    if constexpr (kDegree <= kMaxStagedDegree) {
      if (can_stage(call.scene, gradients.sh)) kernel = &harmonics_kernel<SharedRow<kDegree>>;
    }
    launch(kernel, scenes, kGaussianThreads, 0, stream, call, records, rows, gradients.sh, gradients.sh_factors,
           gradients.means, block_sums);
  });
}

}  // namespace lumigrad::gaussians
