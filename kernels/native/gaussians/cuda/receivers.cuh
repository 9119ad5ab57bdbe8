// Receivers of gradients: a Gaussian in a view, and the sums of a thread and of a block of threads.
#pragma once

#include "gaussians/cuda/gaussian.cuh"
#include "gaussians/cuda/stages.h"
#include "gaussians/math/project_backward.h"

namespace lumigrad::gaussians {

// The calling thread's Gaussian in a view, with the row of sums over its pixels.
struct Receiver {
  const CudaRows& rows;
  const float* row;
  unsigned place, item;  // See CudaPlaces.
  bool drawn;
  bool receives;  // Whether it has gradients from pixels, or upstream gradients of its projected mean.

  __device__ Receiver(const CudaCall& call, const CudaRecords& records, const CudaRows& of_all, bool extra, int view,
                      const GaussianPlace& g)
      : rows(of_all), item(static_cast<unsigned>(view * call.scene.count + g.number)) {
    const Placed placed = records.places.find(call, view, g);
    place = placed.place;
    drawn = placed.drawn;
    row = rows.rows + place * static_cast<int64_t>(rows.width);
    receives = extra ? placed.seen : has_sums();
  }
  __device__ bool has_sums() const {
    if (!drawn) return false;
    bool any = false;
    for (int i = 0; i < rows.width; ++i) any |= row[i] != 0.0f;
    return any;
  }
  __device__ float feature(int f) const { return row[rows.fields + f]; }
};

// Writes the first term of a sum, or adds a later one (`add`).
__device__ inline void put(float* to, float value, bool add) { *to = add ? *to + value : value; }

// Sums 32 values of each thread over the block, and writes sums [from, end) to `to`. All threads of the block must call
// it together, and again only after a barrier.
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

  // Writes the gradients; `add`: adds to gradients that were written for another lens.
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

// The sums over the pixels, without the gradients of depths.
__device__ inline PixelSums<float> pixel_sums(const Receiver& from, const Upstream& up) {
  using namespace gradient_row;
  const float* row = from.row;
  PixelSums<float> sums{row[kOne], row[kDx], row[kDy], row[kDxDx], row[kDxDy], row[kDyDy], 0.0f, {0.0f, 0.0f}};
  if (up.d_means2d != nullptr)
    sums.extra = {up.d_means2d[2 * int64_t{from.item}], up.d_means2d[2 * int64_t{from.item} + 1]};
  return sums;
}

// The gradients of depth and of 1 / depth.
__device__ inline Pair<float> depth_sums(const Receiver& from, const Features& features) {
  int next = features.colors;
  Pair<float> v{0.0f, 0.0f};
  if (features.depth) v.x = from.feature(next++);
  if (features.inverse_depth) v.y = from.feature(next);
  return v;
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

// `mean`: the gradient of the mean through the direction in which the camera sees it.
__device__ inline void fill_eye_sums(const Triple<float>& mean, float (&to)[block_sum::kFields]) {
  to[block_sum::kEye] = -mean.x;
  to[block_sum::kEye + 1] = -mean.y;
  to[block_sum::kEye + 2] = -mean.z;
}

// `absolute`: sums of absolute gradients.
__device__ inline void write_means2d(const Gradients& to, const Receiver& from, const Pair<float>& mean2d,
                                     const Pair<float>& absolute) {
  if (to.means2d != nullptr) {
    to.means2d[2 * int64_t{from.item}] = mean2d.x;
    to.means2d[2 * int64_t{from.item} + 1] = mean2d.y;
  }
  if (to.means2d_abs != nullptr) {
    to.means2d_abs[2 * int64_t{from.item}] = from.receives ? absolute.x : 0.0f;
    to.means2d_abs[2 * int64_t{from.item} + 1] = from.receives ? absolute.y : 0.0f;
  }
}

}  // namespace lumigrad::gaussians
