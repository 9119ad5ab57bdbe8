// Computes the gradients of Gaussians, and the sums for the gradients of poses and lenses, in sensors' views, in
// doubles. A thread for each scene and Gaussian processes all views of the scene.
#include <type_traits>

#include "common/cuda/launch.h"
#include "gaussians/cuda/receivers.cuh"
#include "gaussians/math/sensor/rays.h"

namespace lumigrad::gaussians {
namespace {

// The sums of a thread for its sensor (see kSensorSums) and its slice (see kSliceMotionSums); null if not
// requested.
struct ThreadSums {
  double *sensor, *slice;
  __device__ bool wanted() const { return sensor != nullptr; }
  __device__ void operator()(int index, double value) const {
    (index < kRaySums ? sensor[index] : slice[index - kRaySums]) += value;
  }
};

__device__ inline Triple<float> narrowed(const Triple<double>& v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y), static_cast<float>(v.z)};
}
__device__ inline GaussianGradient<float> narrowed(const GaussianGradient<double>& g) {
  GaussianGradient<float> to{};
  to.mean = narrowed(g.mean);
  to.scale = narrowed(g.scale);
  to.translation = narrowed(g.translation);
  to.rotation = {narrowed(g.rotation.x), narrowed(g.rotation.y), narrowed(g.rotation.z)};
  to.quaternion = {static_cast<float>(g.quaternion.w), static_cast<float>(g.quaternion.x),
                   static_cast<float>(g.quaternion.y), static_cast<float>(g.quaternion.z)};
  to.opacity = static_cast<float>(g.opacity);
  to.mean2d = {static_cast<float>(g.mean2d.x), static_cast<float>(g.mean2d.y)};
  return to;
}

__device__ inline PixelSums<double> widened(const PixelSums<float>& s, double depth) {
  return {s.one, s.x, s.y, s.xx, s.xy, s.yy, depth, {s.extra.x, s.extra.y}};
}

// Takes the place of a lens: along rays no formula here depends on the lens.
struct AlongRays {};

template <class SensorKind>
__device__ inline GaussianGradient<double> gaussian_backward(const SensorPlace& at, const Gaussian<double>& gaussian,
                                                             const Receiver& from, const Upstream& up,
                                                             const Pair<float>& depth, const ThreadSums& of_view) {
  const double v_depth = depth.x, v_inverse_depth = depth.y;
  if constexpr (std::is_same_v<SensorKind, AlongRays>) {
    double fields[ray_row::kUsed];
    for (int i = 0; i < ray_row::kUsed; ++i) fields[i] = from.row[i];
    return along_rays_backward(at, gaussian, fields, v_depth, v_inverse_depth, of_view);
  } else {
    return sensor_backward<SensorKind>(at, gaussian, widened(pixel_sums(from, up), v_depth), v_inverse_depth, of_view);
  }
}

// Sums over the block. All threads must call it together.
__device__ inline void put_sensor_sums(const double* own, double* to) {
  for (int i = 0; i < kSensorSums; ++i) {
    const double total = block_total<static_cast<int>(kGaussianThreads)>(own[i]);
    if (threadIdx.x == 0) to[i] = total;
  }
}

// Adds the sums over pixels for a slice.
__device__ inline void add_motion_row(const float* row, double* to) {
  for (int k = 0; k < kSliceMotionSums; ++k) to[k] += static_cast<double>(row[k]);
}

// `block_sums` and `sensor_sums` [V, blocks, kSensorSums] are null if no sums are requested; `motion_rows`
// [places + 1, kRayFields] where no slice moves.
template <class SensorKind>
__global__ void __launch_bounds__(kGaussianThreads)
    sensors_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                   const __grid_constant__ Upstream up, const __grid_constant__ CudaRows rows,
                   const __grid_constant__ Gradients to, double* block_sums, double* sensor_sums, SensorLens lens,
                   const float* motion_rows, bool add) {
  const GaussianPlace place = gaussian_place(call);
  const bool present = place.number >= 0, extra = up.d_means2d != nullptr;
  const int64_t index = place.outer * static_cast<int64_t>(call.scene.count) + place.number;
  Gaussian<double> gaussian{};
  if (present) gaussian = gaussian64_of(call.scene, index);
  Received<false> received;
  bool touched = false;
  for (int i = call.scene_starts[place.outer]; i < call.scene_starts[place.outer + 1]; ++i) {
    const int view = call.scene_views[i];
    const Sensor& sensor = call.scene.sensors[view];
    if (!std::is_same_v<SensorKind, AlongRays> && sensor.lens != lens) continue;
    float sums[block_sum::kFields] = {};
    double own[kSensorSums], motion[kSliceMotionSums] = {};
    for (int k = 0; sensor_sums != nullptr && k < kSensorSums; ++k) own[k] = 0.0;
    bool receives = false;
    if (present) {
      const Receiver from(call, records, rows, extra, view, place);
      receives = from.receives;
      Pair<float> mean2d{0.0f, 0.0f};
      if (receives) {
        const SensorPlace at{call.view[view], sensor, call.scene.slice_poses[place.slice], call.settings};
        const Pair<float> depth = depth_sums(from, records.features);
        const ThreadSums of_view{sensor_sums != nullptr ? own : nullptr, motion};
        const auto g = narrowed(gaussian_backward<SensorKind>(at, gaussian, from, up, depth, of_view));
        received.add(g);
        mean2d = g.mean2d;
        const Triple<float> mean = narrowed(gaussian.mean);
        if (block_sums != nullptr) fill_block_sums(g, Triple<float>{}, mean, sums);
        if (motion_rows != nullptr) add_motion_row(motion_rows + int64_t{from.place} * kRayFields, motion);
        for (int k = 0; k < kSliceMotionSums; ++k) sums[block_sum::kMotion + k] = static_cast<float>(motion[k]);
      }
      touched |= receives && extra;
      write_means2d(to, from, mean2d, {from.row[gradient_row::kAbsX], from.row[gradient_row::kAbsY]});
    }
    if (block_sums != nullptr && __syncthreads_or(receives)) {
      const int64_t block = static_cast<int64_t>(view) * call.blocks + place.block;
      put_block_sums(sums, block_sum::kRotation, block_sum::kEye, block_sums + block * block_sum::kFields);
      if (sensor_sums != nullptr) put_sensor_sums(own, sensor_sums + block * kSensorSums);
    }
  }
  if (!present) return;
  received.write(to, index, add);
  if (touched) to.touched[index] = 1;
}

// Sums over the blocks of a view, in order, with a thread per sum.
__global__ void sensor_totals_kernel(const double* sensor_sums, int blocks, double* to) {
  const int field = static_cast<int>(threadIdx.x);
  if (field >= kSensorSums) return;
  double sum = 0.0;
  for (int b = 0; b < blocks; ++b) {
    sum += sensor_sums[(static_cast<int64_t>(blockIdx.x) * blocks + b) * kSensorSums + field];
  }
  to[static_cast<int64_t>(blockIdx.x) * kSensorSums + field] = sum;
}

}  // namespace

void cuda_sensor_backward(const CudaCallData& data, const CudaRecords& records, const Upstream& upstream,
                          const CudaRows& rows, const float* motion_rows, const Gradients& gradients,
                          double* block_sums, cudaStream_t stream) {
  const CudaCall& call = data.call();
  const bool wanted = gradients.sensors != nullptr;
  const std::size_t sums = static_cast<std::size_t>(call.views) * call.blocks * kSensorSums;
  DeviceBuffer<double> sensor_sums(wanted ? sums : 0, stream);
  if (wanted) check(cudaMemsetAsync(sensor_sums.data(), 0, sensor_sums.bytes(), stream), "clearing sums");
  bool add = false;
  const auto run = [&](auto lens, SensorLens number) {
    launch(sensors_kernel<decltype(lens)>, static_cast<unsigned>(call.scene.scenes * call.blocks), kGaussianThreads, 0,
           stream, call, records, upstream, rows, gradients, block_sums, wanted ? sensor_sums.data() : nullptr, number,
           motion_rows, add);
    add = true;
  };
  if (call.settings.rays) {
    run(AlongRays(), SensorLens::pinhole);
  } else {
    each_sensor_lens(data, [&](auto lens, SensorLens number) {
      if constexpr (!std::is_same_v<decltype(lens), SpinningLidar>) run(lens, number);
    });
  }
  static_assert(kSensorSums <= kGaussianThreads);
  if (wanted) {
    launch(sensor_totals_kernel, static_cast<unsigned>(call.views), kGaussianThreads, 0, stream, sensor_sums.data(),
           call.blocks, gradients.sensors);
  }
}

}  // namespace lumigrad::gaussians
