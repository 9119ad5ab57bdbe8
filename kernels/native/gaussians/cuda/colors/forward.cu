// Writes the colours of records, unless the kernels of project.cu do: the scene's colours, or spherical harmonics.
#include "common/cuda/launch.h"
#include "gaussians/cuda/colors/evaluate.cuh"
#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {
namespace {

__global__ void __launch_bounds__(kGaussianThreads)
    copy_colors_kernel(const __grid_constant__ CudaCall call, CudaRecords to) {
  const GaussianPlace place = gaussian_place(call);
  const Placed placed = to.places.find(call, place.outer, place);
  if (!placed.drawn) return;
  const float* from = given_colors(call, place.outer, place.number);
  for (int c = 0; c < call.scene.channels; ++c) to.set_color(placed.place, c, from[c]);
}

__global__ void __launch_bounds__(kGaussianThreads)
    harmonics_kernel(const __grid_constant__ CudaCall call, CudaRecords to) {
  const GaussianPlace place = gaussian_place(call);
  const Placed placed = to.places.find(call, place.outer, place);
  if (!placed.drawn) return;
  const int64_t index = call.view[place.outer].scene * static_cast<int64_t>(call.scene.count) + place.number;
  const Harmonics<kMaxDegree> harmonics(direction_of(call, place, index));
  const int channels = call.scene.channels, used = harmonics_of(call.settings.sh_degree);
  const float* sh = call.scene.sh + index * call.scene.coefficients * channels;
  for (int c = 0; c < channels; ++c) {
    float sum = 0.5f;
#pragma unroll
    for (int k = 0; k < kHarmonics<kMaxDegree>; ++k) {
      if (k < used) sum = fma(harmonics.value[k], sh[k * channels + c], sum);
    }
    to.set_color(placed.place, c, max(sum, 0.0f));
  }
}

// Writes colours from coefficients that warps fetch together.
template <int kDegree>
__global__ void __launch_bounds__(kGaussianThreads)
    staged_harmonics_kernel(const __grid_constant__ CudaCall call, CudaRecords to) {
  const GaussianPlace place = gaussian_place(call);
  write_colors<kDegree>(call, to, place, to.places.find(call, place.outer, place));
}

}  // namespace

void cuda_colors(const CudaCall& call, const CudaRecords& records, cudaStream_t stream) {
  if (records.features.colors == 0) return;
  const auto blocks = static_cast<unsigned>(call.views * call.blocks);
  if (call.scene.sh == nullptr) {
    launch(copy_colors_kernel, blocks, kGaussianThreads, 0, stream, call, records);
    return;
  }
  auto kernel = &harmonics_kernel;
  if (can_stage(call.scene, nullptr)) {
    with_staged_degree(call.settings.sh_degree,
                       [&](auto degree) { kernel = &staged_harmonics_kernel<decltype(degree)::value>; });
  }
  launch(kernel, blocks, kGaussianThreads, 0, stream, call, records);
}

}  // namespace lumigrad::gaussians
