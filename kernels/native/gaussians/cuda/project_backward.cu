// Computes gradients of the scene, poses, lenses and colours from the sums over pixels on the device. A thread for each
// scene and Gaussian processes all views of the scene, so that no two threads add to the same value.
#include "common/cuda/launch.h"
#include "common/cuda/primitives.cuh"
#include "gaussians/cuda/gaussian.cuh"
#include "gaussians/cuda/stages.h"
#include "gaussians/math/project_backward.h"

namespace lumigrad::gaussians {
namespace {

inline constexpr int kGaussianWarps = static_cast<int>(kGaussianThreads) / kWarp;

// A Gaussian in a view, with the row of sums over its pixels.
struct Receiver {
  const float* row;
  int64_t item;
  bool receives;  // Gradients of pixels, or upstream gradients of the projected means.

  __device__ Receiver(const CudaCall& call, const CudaRecords& records, const CudaRows& rows, bool extra, int view,
                      int number)
      : item(view * static_cast<int64_t>(call.scene.count) + number) {
    row = rows.rows + item * rows.width;
    const float* record = records.record(item);
    receives = extra ? !is_culled(record) : reaches_pixels(range_of(record)) && has_sums(rows.width);
  }
  __device__ bool has_sums(int width) const {
    bool any = false;
    for (int i = 0; i < width; ++i) any |= row[i] != 0.0f;
    return any;
  }
  __device__ float feature(int f) const { return row[gradient_row::kFeatures + f]; }
};

// Writes the first term of a sum, or adds a later one (`add`).
__device__ inline void put(float* to, float value, bool add) { *to = add ? *to + value : value; }

// Sums 32 values of each thread over the block, and writes the sums number `from` to `end` - 1 to `to`. All threads of
// the block must call it together, and again only after a barrier.
__device__ inline void put_block_sums(float (&values)[kWarp], int from, int end, double* to) {
  __shared__ SharedArray<float, kGaussianWarps * kWarp> partial;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_index();
  partial[warp * kWarp + lane] = warp_sums(values);
  __syncthreads();
  if (warp > 0 || lane < from || lane >= end) return;
  double sum = 0.0;
  for (int w = 0; w < kGaussianWarps; ++w) sum += static_cast<double>(partial[w * kWarp + lane]);
  to[lane] = sum;
}

static_assert(block_sum::kFields == kWarp);

// The gradients of a Gaussian from the views of one lens.
template <bool kCovariance>
struct Received {
  Triple<float> mean{}, scale{};
  Quaternion<float> quaternion{};
  Symmetric<float> covariance{};
  float opacity = 0.0f;

  __device__ void add(const GaussianGradient<float>& g) {
    mean = mean + g.mean;
    opacity += g.opacity;
    if constexpr (kCovariance) {
      const Symmetric<float>& a = covariance;
      const Symmetric<float>& b = g.covariance;
      covariance = {a.xx + b.xx, a.xy + b.xy, a.xz + b.xz, a.yy + b.yy, a.yz + b.yz, a.zz + b.zz};
    } else {
      const Quaternion<float>& a = quaternion;
      const Quaternion<float>& b = g.quaternion;
      quaternion = {a.w + b.w, a.x + b.x, a.y + b.y, a.z + b.z};
      scale = scale + g.scale;
    }
  }

  // `add`: adds to gradients that were written for another lens.
  __device__ void write(const Gradients& to, int64_t index, bool add) const {
    const auto store = [&](float* array, int width, const auto&... values) {
      if (array == nullptr) return;
      float* at = array + index * width;
      (put(at++, values, add), ...);
    };
    store(to.means, 3, mean.x, mean.y, mean.z);
    store(to.opacities, 1, opacity);
    if constexpr (kCovariance) {
      const Symmetric<float>& m = covariance;
      store(to.covariances, 6, m.xx, m.xy, m.xz, m.yy, m.yz, m.zz);
    } else {
      store(to.quats, 4, quaternion.w, quaternion.x, quaternion.y, quaternion.z);
      store(to.scales, 3, scale.x, scale.y, scale.z);
    }
  }
};

__device__ inline PixelSums<float> pixel_sums(const Receiver& from, const Features& features, const Upstream& up,
                                              const Pose& pose, const Triple<float>& mean) {
  using namespace gradient_row;
  const float* row = from.row;
  PixelSums<float> sums{row[kOne], row[kDx], row[kDy], row[kDxDx], row[kDxDy], row[kDyDy], 0.0f, {0.0f, 0.0f}};
  int next = features.colors;
  if (features.depth) sums.depth = from.feature(next++);
  if (features.inverse_depth) {
    const Triple<float> z = {pose.rotation[6], pose.rotation[7], pose.rotation[8]};
    const float inverse = 1.0f / (dot(z, mean) + pose.translation[2]);
    sums.depth = fma(-from.feature(next), inverse * inverse, sums.depth);
  }
  if (up.d_means2d != nullptr) sums.extra = {up.d_means2d[2 * from.item], up.d_means2d[2 * from.item + 1]};
  return sums;
}

__device__ inline void fill_block_sums(const GaussianGradient<float>& g, const Triple<float>& v_h,
                                       const Triple<float>& mean, float (&to)[block_sum::kFields]) {
  const Matrix<float>& r = g.rotation;
  const float rotation[9] = {r.x.x, r.x.y, r.x.z, r.y.x, r.y.y, r.y.z, r.z.x, r.z.y, r.z.z};
  const float rest[7] = {g.translation.x, g.translation.y, g.translation.z, g.fx, g.fy, g.cx, g.cy};
  const float h[3] = {v_h.x, v_h.y, v_h.z}, point[4] = {mean.x, mean.y, mean.z, 1.0f};
#pragma unroll
  for (int i = 0; i < 9; ++i) to[block_sum::kRotation + i] = rotation[i];
#pragma unroll
  for (int i = 0; i < 7; ++i) to[block_sum::kTranslation + i] = rest[i];
#pragma unroll
  for (int i = 0; i < 12; ++i) to[block_sum::kProjection + i] = h[i / 4] * point[i % 4];
}

__device__ inline void write_means2d(const Gradients& to, const Receiver& from, const Pair<float>& mean2d) {
  if (to.means2d != nullptr) {
    to.means2d[2 * from.item] = mean2d.x;
    to.means2d[2 * from.item + 1] = mean2d.y;
  }
  if (to.means2d_abs != nullptr) {
    to.means2d_abs[2 * from.item] = from.receives ? from.row[gradient_row::kAbsX] : 0.0f;
    to.means2d_abs[2 * from.item + 1] = from.receives ? from.row[gradient_row::kAbsY] : 0.0f;
  }
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
        const auto pixel = pixel_sums(from, records.features, up, pose, gaussian.mean);
        Triple<float> v_h;
        const auto g = project_backward<kLens, kCovariance>(call.view[view], pose, call.settings, gaussian, pixel, v_h);
        received.add(g);
        mean2d = g.mean2d;
        if (block_sums != nullptr) fill_block_sums(g, v_h, gaussian.mean, sums);
      }
      touched |= receives && extra;
      write_means2d(to, from, mean2d);
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
