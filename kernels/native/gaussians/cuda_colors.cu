// The colours of the records, on the device: given ones, or spherical harmonics in the direction of the camera.
#include "common/launch.h"
#include "gaussians/cuda_harmonics.cuh"
#include "gaussians/cuda_stages.h"

namespace lumigrad::gaussians {
namespace {

__global__ void __launch_bounds__(kGaussianThreads)
    copy_colors_kernel(const __grid_constant__ CudaCall call, CudaRecords to) {
  const GaussianPlace place = gaussian_place(call);
  if (place.number < 0) return;
  const int64_t item = place.outer * static_cast<int64_t>(call.scene.count) + place.number;
  if (!reaches_pixels(range_of(to.record(item)))) return;
  const float* from = given_colors(call, place.outer, place.number);
  float* color = to.features_of(item);
  for (int c = 0; c < call.scene.channels; ++c) color[c] = from[c];
}

template <int kDegree>
__global__ void __launch_bounds__(kGaussianThreads)
    harmonics_kernel(const __grid_constant__ CudaCall call, CudaRecords to) {
  const GaussianPlace place = gaussian_place(call);
  if (place.number < 0) return;
  const int64_t count = call.scene.count, item = place.outer * count + place.number;
  if (!reaches_pixels(range_of(to.record(item)))) return;
  const int64_t index = call.view[place.outer].scene * count + place.number;
  const Pose& pose = call.scene.poses[place.outer * call.scene.slices + place.slice];
  const Harmonics<kDegree> harmonics(direction_to(pose, mean_of(call.scene, index)).d);
  const int channels = call.scene.channels;
  const float* sh = call.scene.sh + index * call.scene.coefficients * channels;
  float* color = to.features_of(item);
  for (int c = 0; c < channels; ++c) {
    float sum = 0.5f;
#pragma unroll
    for (int k = 0; k < kHarmonics<kDegree>; ++k) sum = fma(harmonics.value[k], sh[k * channels + c], sum);
    color[c] = max(sum, 0.0f);
  }
}

}  // namespace

void cuda_colors(const CudaCall& call, const CudaRecords& records, cudaStream_t stream) {
  if (records.features.colors == 0) return;
  const auto blocks = static_cast<unsigned>(call.views * call.blocks);
  if (call.scene.sh == nullptr) {
    launch(copy_colors_kernel, blocks, kGaussianThreads, 0, stream, call, records);
    return;
  }
  with_degree(call.settings.sh_degree, [&](auto degree) {
    launch(harmonics_kernel<decltype(degree)::value>, blocks, kGaussianThreads, 0, stream, call, records);
  });
}

}  // namespace lumigrad::gaussians
