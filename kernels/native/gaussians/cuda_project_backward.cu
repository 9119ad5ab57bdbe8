// From sums over pixels to gradients of the scene, of poses and of lenses, on the device: a thread per scene and
// Gaussian goes through the scene's views, so that nothing is added to by two threads.
#include "common/launch.h"
#include "gaussians/cuda_gaussian.cuh"
#include "gaussians/cuda_receivers.cuh"
#include "gaussians/math_project_backward.h"

namespace lumigrad::gaussians {
namespace {

static_assert(block_sum::kFields == kWarp);

// What a Gaussian receives from the views of one lens.
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

  // `add`: another lens was here before.
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

}  // namespace lumigrad::gaussians
