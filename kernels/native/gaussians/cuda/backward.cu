// The backward pass on the device, from the state that the forward pass retained.
#include <stdexcept>

#include "common/cuda/launch.h"
#include "common/cuda/pair_rows.h"
#include "gaussians/cuda/rays/field.cuh"
#include "gaussians/cuda/rays/stages.h"
#include "gaussians/cuda/surfels/stages.h"

namespace lumigrad::gaussians {
namespace {

// Sums over the pixels of every item into rows, with `run`.
template <class Run>
void sum_rows(const CudaCall& call, const CudaPass& pass, CudaRows& rows, const Run& run, cudaStream_t stream) {
  const std::size_t items = pass.items.size();
  const auto width = static_cast<std::size_t>(rows.width);
  if (!call.settings.deterministic) {
    check(cudaMemsetAsync(rows.rows, 0, (items + 1) * width * sizeof(float), stream), "clearing sums");
    return run();
  }
  check(cudaMemsetAsync(rows.rows + items * width, 0, width * sizeof(float), stream), "clearing sums");
  DeviceBuffer<float> pair_rows(std::size_t{pass.lists.pairs} * width, stream);
  check(cudaMemsetAsync(pair_rows.data(), 0, pair_rows.bytes(), stream), "clearing sums");
  rows.pair_rows = pair_rows.data();
  run();
  sum_pair_rows(pass.lists.entries, pass.lists.pairs, items, rows.width, rows.pair_rows, rows.rows, stream);
}

// Sums the gradients of every item over its pixels. Along rays `to_rays`, unless null, receives the rays' gradients.
void blend_backward(const CudaCall& call, const CudaRecords& records, const CudaPass& pass, const Upstream& upstream,
                    CudaRows& rows, float* to_rays, cudaStream_t stream) {
  const auto run = [&] {
    if (call.settings.rays) {
      cuda_blend_rays_backward(call, records, pass.lists, pass.rays.data(), upstream, pass.lasts.data(), rows, to_rays,
                               stream);
    } else if (call.settings.surfels) {
      cuda_blend_surfels_backward(call, records, pass.lists, upstream, pass.lasts.data(), pass.medians.data(), rows,
                                  stream);
    } else {
      cuda_blend_backward(call, records, pass.lists, segments_of(pass), upstream, pass.lasts.data(), rows, stream);
    }
  };
  sum_rows(call, pass, rows, run, stream);
}

// Sums the gradients for moving slices along rays.
void blend_slices_backward(const CudaCall& call, const CudaRecords& records, const CudaPass& pass,
                           const Upstream& upstream, CudaRows& rows, cudaStream_t stream) {
  const auto run = [&] {
    cuda_blend_slices_backward(call, records, pass.lists, pass.rays.data(), upstream, pass.lasts.data(), rows, stream);
  };
  sum_rows(call, pass, rows, run, stream);
}

// Whether gradients pass through rays: to given rays, or to lenses and motions.
bool needs_rays(const Settings& settings, const Scene& scene, const Gradients& gradients) {
  if (!settings.rays) return false;
  return scene.rays != nullptr ? gradients.rays != nullptr
                               : gradients.sensors != nullptr && !settings.frozen_projection;
}

}  // namespace

DeviceTimer cuda_backward(const View* views, int count, const Settings& settings, const Scene& scene,
                          const Upstream& upstream, const Gradients& gradients, const CudaPass& pass,
                          CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaCallData data(views, count, settings, scene, workspace, stream);
  const CudaCall& call = data.call();
  if (pass.lanes.size() != warps_of(call))
    throw std::logic_error("slices of a backward pass are those of its forward pass");
  const CudaRecords records = records_of(pass);
  static_assert(kRayFields == kSurfelFields);
  const int fields = settings.rays || settings.surfels ? kRayFields : int{gradient_row::kFeatures};
  const int width = fields + pass.features.total();
  DeviceBuffer<float> sums((pass.items.size() + 1) * static_cast<std::size_t>(width), stream);
  CudaRows rows{fields, width, gradients.means2d_abs != nullptr, sums.data(), nullptr, gradients.touched};
  const std::size_t gaussians = static_cast<std::size_t>(scene.scenes) * scene.count;
  if (gaussians > 0) {
    check(cudaMemsetAsync(gradients.touched, 0, gaussians * sizeof(*gradients.touched), stream), "clearing a mask");
  }
  const bool through_rays = needs_rays(settings, scene, gradients);
  const DeviceBuffer<float> v_rays(through_rays ? pass.rays.size() : 0, stream);
  blend_backward(call, records, pass, upstream, rows, through_rays ? v_rays.data() : nullptr, stream);
  const bool through_slices = settings.rays && scene.moving_slices > 0 && gradients.poses != nullptr;
  const DeviceBuffer<float> motion_rows(through_slices ? (pass.items.size() + 1) * kRayFields : 0, stream);
  if (through_slices) {
    CudaRows of_slices{kRayFields, kRayFields, false, motion_rows.data(), nullptr, gradients.touched};
    blend_slices_backward(call, records, pass, upstream, of_slices, stream);
  }
  if (gradients.background != nullptr) cuda_background_backward(call, upstream, gradients.background, stream);
  timer.mark("blend_backward");
  const bool needs_blocks = gradients.poses != nullptr || gradients.normals != nullptr ||
                            gradients.intrinsics != nullptr || gradients.projection != nullptr ||
                            gradients.sensors != nullptr;
  const std::size_t blocks = needs_blocks ? static_cast<std::size_t>(count) * call.blocks * block_sum::kFields : 0;
  DeviceBuffer<double> block_sums(blocks, stream);
  double* to_blocks = needs_blocks ? block_sums.data() : nullptr;
  if (needs_blocks) check(cudaMemsetAsync(to_blocks, 0, block_sums.bytes(), stream), "clearing sums");
  bool colored = pass.features.colors == 0;
  if (call.scene.sensors != nullptr) {
    cuda_sensor_backward(data, records, upstream, rows, through_slices ? motion_rows.data() : nullptr, gradients,
                         to_blocks, stream);
  } else if (settings.surfels) {
    cuda_project_surfels_backward(call, records, upstream, rows, gradients, to_blocks, stream);
  } else {
    colored |= cuda_project_backward(data, records, upstream, rows, gradients, to_blocks, stream);
  }
  if (gradients.inverse_windshield != nullptr) {
    const std::size_t bytes = sizeof(double) * static_cast<std::size_t>(count) * (kRaySums - kSensorSums);
    check(cudaMemsetAsync(gradients.inverse_windshield, 0, bytes, stream), "clearing gradients");
  }
  if (through_rays) cuda_rays_backward(data, pass.lists, pass.rays.data(), v_rays.data(), gradients, stream);
  if (!colored) cuda_colors_backward(call, records, rows, gradients, to_blocks, stream);
  if (needs_blocks) cuda_sum_blocks(call, to_blocks, gradients, stream);
  timer.mark("project_backward");
  return timer;
}

}  // namespace lumigrad::gaussians
