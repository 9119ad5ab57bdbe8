// Computes the gradients of surfels, and the sums for the gradients of poses and intrinsics, on the device. A thread
// for each scene and Gaussian processes all views of the scene.
#include "common/cuda/launch.h"
#include "gaussians/cuda/receivers.cuh"
#include "gaussians/cuda/surfels/stages.h"
#include "gaussians/math/surfel_project.h"

namespace lumigrad::gaussians {
namespace {

// The gradient of the normal, world frame.
__device__ inline Triple<float> normal_sums(const Receiver& from, const Features& features) {
  if (!features.normals) return {0.0f, 0.0f, 0.0f};
  const int first = features.colors + features.depth;
  return {from.feature(first), from.feature(first + 1), from.feature(first + 2)};
}

__device__ inline Triple<float> into_slice(const SlicePose& slice, const Triple<float>& v) {
  const auto column = [&](int k) {
    const auto r = [&](int row) { return static_cast<float>(slice.rotation[3 * row + k]); };
    return fma(r(0), v.x, fma(r(1), v.y, r(2) * v.z));
  };
  return {column(0), column(1), column(2)};
}

// Sets the sums of the gradient through the normal to the slice's rotation, in place of Inria's projection.
__device__ inline void fill_normal_sums(const Triple<float>& v, const Triple<float>& normal,
                                        float (&to)[block_sum::kFields]) {
  const Matrix<float> m = outer(v, normal);
  const float nine[kRotationFloats] = {m.x.x, m.x.y, m.x.z, m.y.x, m.y.y, m.y.z, m.z.x, m.z.y, m.z.z};
#pragma unroll
  for (int i = 0; i < kRotationFloats; ++i) to[block_sum::kProjection + i] = nine[i];
}

__global__ void __launch_bounds__(kGaussianThreads)
    surfels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                   const __grid_constant__ Upstream up, const __grid_constant__ CudaRows rows,
                   const __grid_constant__ Gradients to, double* block_sums) {
  const GaussianPlace place = gaussian_place(call);
  const bool present = place.number >= 0, extra = up.d_means2d != nullptr;
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + place.number;
  Gaussian<float> gaussian{};
  if (present) gaussian = gaussian_of<false>(call.scene, index);
  Received<false> received;
  bool touched = false;
  for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
    const int view = call.scene_views[i];
    float sums[block_sum::kFields] = {};
    bool receives = false;
    if (present) {
      const Receiver from(call, records, rows, extra, view, place);
      receives = from.receives;
      Pair<float> mean2d{0.0f, 0.0f};
      if (receives) {
        const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
        const Triple<float> v_normal = normal_sums(from, records.features);
        const float v_depth = depth_sums(from, records.features).x + from.row[kMoreDepth];
        SurfelUpstream<float> pixel{from.row, v_depth, into_slice(call.scene.slice_poses[place.slice], v_normal), {}};
        if (extra) pixel.extra = {up.d_means2d[2 * int64_t{from.item}], up.d_means2d[2 * int64_t{from.item} + 1]};
        Triple<float> normal;
        const auto g = surfel_backward(call.view[view], pose, call.settings, gaussian, pixel, normal);
        received.add(g);
        mean2d = g.mean2d;
        if (block_sums != nullptr) {
          fill_block_sums(g, Triple<float>{}, gaussian.mean, sums);
          fill_normal_sums(v_normal, normal, sums);
        }
      }
      touched |= receives && extra;
      write_means2d(to, from, mean2d, absolute_mean2d(from.row));
    }
    if (block_sums != nullptr && __syncthreads_or(receives)) {
      double* of_block = block_sums + (static_cast<int64_t>(view) * call.blocks + place.block) * block_sum::kFields;
      put_block_sums(sums, block_sum::kRotation, block_sum::kEye, of_block);
    }
  }
  if (!present) return;
  received.write(to, index, false);
  if (touched) to.touched[index] = 1;
}

}  // namespace

void cuda_project_surfels_backward(const CudaCall& call, const CudaRecords& records, const Upstream& upstream,
                                   const CudaRows& rows, const Gradients& gradients, double* block_sums,
                                   cudaStream_t stream) {
  launch(surfels_kernel, static_cast<unsigned>(call.scene.scenes * call.blocks), kGaussianThreads, 0, stream, call,
         records, upstream, rows, gradients, block_sums);
}

}  // namespace lumigrad::gaussians
