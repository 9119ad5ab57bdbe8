// Computes records from the scene on the device: a thread for each view and Gaussian projects it and evaluates its
// colours.
#include <type_traits>

#include "common/cuda/launch.h"
#include "gaussians/cuda/projected.cuh"
#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {
namespace {

// Writes a record without its colours, which are written later.
__device__ inline void write_record(const CudaRecords& to, int64_t item, const Projected<float>& g, unsigned columns,
                                    unsigned rows) {
  float4* record = to.records + kRecordQuarters * item;
  record[0] = make_float4(g.x, g.y, g.ux, g.uy);
  record[1] = make_float4(g.vy, g.log2_opacity, __uint_as_float(columns), __uint_as_float(rows));
  if (to.stride == 0) record[2] = record[3] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float* features = to.features_of(item);
  float* next = features + to.features.colors;
  if (to.features.depth) *next++ = g.depth;
  if (to.features.inverse_depth) *next++ = 1.0f / g.depth;
  while (next < features + to.stride) *next++ = 0.0f;
}

// Writes all that the projection of a Gaussian in a view yields.
__device__ inline void store_projected(const CudaRecords& to, const Outputs& outputs, unsigned* keys, int64_t item,
                                       const Projected<float>& g) {
  write_outputs(outputs, item, g);
  const DrawnRange range(g);
  write_record(to, item, g, range.columns, range.rows);
  keys[item] = range.reaches ? sortable(g.depth) : kBehindAll;
}

template <Lens kLens, bool kCovariance>
__global__ void __launch_bounds__(kGaussianThreads)
    project_kernel(const __grid_constant__ CudaCall call, CudaRecords to, Outputs outputs, unsigned* keys) {
  const GaussianPlace place = gaussian_place(call);
  const int view = place.outer;
  if (place.number < 0 || call.lenses[view] != static_cast<int32_t>(kLens)) return;
  const int64_t count = call.scene.count, item = view * count + place.number;
  const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
  const auto gaussian = gaussian_of<kCovariance>(call.scene, call.view[view].scene * count + place.number);
  const Projected<float> g = project<kLens, kCovariance>(call.view[view], pose, call.settings, gaussian);
  store_projected(to, outputs, keys, item, g);
}

// Of sensors: in doubles.
template <class SensorKind>
__global__ void __launch_bounds__(kGaussianThreads)
    project_sensor_kernel(const __grid_constant__ CudaCall call, CudaRecords to, Outputs outputs, unsigned* keys,
                          SensorLens lens) {
  const GaussianPlace place = gaussian_place(call);
  const int view = place.outer;
  if (place.number < 0 || call.scene.sensors[view].lens != lens) return;
  const int64_t count = call.scene.count;
  const auto gaussian = gaussian64_of(call.scene, call.view[view].scene * count + place.number);
  const SensorPlace at{call.view[view], call.scene.sensors[view], call.scene.slice_poses[place.slice], call.settings};
  SensorFootprint<double> f;
  Projected<float> g;
  g.visible = sensor_footprint<SensorKind>(at, gaussian, f);
  const SensorFootprint<float> film = {
      static_cast<float>(f.x), static_cast<float>(f.y), static_cast<float>(f.depth), static_cast<float>(f.a),
      static_cast<float>(f.b), static_cast<float>(f.c), static_cast<float>(f.sharp), static_cast<float>(f.schur)};
  constexpr bool kFilm = !std::is_same_v<SensorKind, SpinningLidar>;
  finish_sensor<kFilm>(at.view, at.settings, film, static_cast<float>(gaussian.opacity), g);
  store_projected(to, outputs, keys, view * count + place.number, g);
}

}  // namespace

void cuda_project(const CudaCallData& data, const CudaRecords& records, const Outputs& outputs, unsigned* keys,
                  cudaStream_t stream) {
  const CudaCall& call = data.call();
  const auto blocks = static_cast<unsigned>(call.views * call.blocks);
  each_sensor_lens(data, [&](auto lens, SensorLens number) {
    launch(project_sensor_kernel<decltype(lens)>, blocks, kGaussianThreads, 0, stream, call, records, outputs, keys,
           number);
  });
  each_lens(data, [&](auto lens, auto covariance) {
    launch(project_kernel<decltype(lens)::value, decltype(covariance)::value>, blocks, kGaussianThreads, 0, stream,
           call, records, outputs, keys);
  });
}

// The colours of the records: the scene's colours, or spherical harmonics in the direction from the camera.
namespace {

__global__ void __launch_bounds__(kGaussianThreads)
    copy_colors_kernel(const __grid_constant__ CudaCall call, CudaRecords to) {
  const GaussianPlace place = gaussian_place(call);
  if (place.number < 0) return;
  const int64_t item = place.outer * static_cast<int64_t>(call.scene.count) + place.number;
  if (!reaches_pixels(to.range(item))) return;
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
  if (!reaches_pixels(to.range(item))) return;
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
