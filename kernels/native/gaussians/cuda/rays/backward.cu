// Gradients of lenses and motions, or of given rays, from the gradients of the rays.
#include <type_traits>

#include "common/cuda/launch.h"
#include "common/cuda/primitives.cuh"
#include "gaussians/cuda/rays/field.cuh"
#include "gaussians/cuda/rays/stages.h"
#include "gaussians/math/sensor/rays.h"

namespace lumigrad::gaussians {
namespace {

constexpr int kThreads = 128;
// The number of parts of a view's tiles, with a block of threads each.
constexpr int kParts = 256;

__device__ inline RayGradient<double> widened(const Ray& ray) {
  return {{ray.origin.x, ray.origin.y, ray.origin.z}, {ray.direction.x, ray.direction.y, ray.direction.z}};
}

struct RaySums {
  double* to;
  __device__ void operator()(int index, double value) const { to[index] += value; }
};

template <class SensorKind>
__global__ void __launch_bounds__(kThreads)
    ray_sums_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ TileLists lists, const float* rays,
                    const float* v_rays, SensorLens lens, double* partial, float* lidar_angles) {
  const int view = static_cast<int>(blockIdx.x) / kParts, part = static_cast<int>(blockIdx.x) % kParts;
  const Sensor& sensor = call.scene.sensors[view];
  if (sensor.lens != lens) return;
  const int64_t tiles = static_cast<int64_t>(lists.tiles_x) * lists.tiles_y;
  const int64_t begin = tiles * part / kParts, end = tiles * (part + 1) / kParts;
  double* sums = partial + static_cast<int64_t>(blockIdx.x) * kRaySums;
  // A small image has fewer tiles than parts.
  if (begin == end) {
    if (threadIdx.x < kRaySums) sums[threadIdx.x] = 0.0;
    return;
  }
  double own[kRaySums];
  for (int i = 0; i < kRaySums; ++i) own[i] = 0.0;
  for (int64_t t = begin; t < end; ++t) {
    const int tile = static_cast<int>(view * tiles + t);
    for (int thread = static_cast<int>(threadIdx.x); thread < kTilePixels; thread += kThreads) {
      const Ray ray = load_ray(rays, tile, thread);
      if (!ray.exists()) continue;
      // The assignment of threads to pixels is that of tile_pixel.
      constexpr int kAcross = kDeviceTile / kWarpWidth;
      const int warp = thread / kWarp, lane = thread % kWarp;
      const int x = static_cast<int>(t % lists.tiles_x) * kDeviceTile + warp % kAcross * kWarpWidth + lane % kWarpWidth;
      const int y =
          static_cast<int>(t / lists.tiles_x) * kDeviceTile + warp / kAcross * kWarpHeight + lane / kWarpWidth;
      const Pair<double> pixel = {x + 0.5, y + 0.5};
      const RaySums add{own};
      const RayGradient<double> v =
          to_start_backward(call.view[view], sensor, pixel, widened(ray), widened(load_ray(v_rays, tile, thread)), add);
      if constexpr (std::is_same_v<SensorKind, SpinningLidar>) {
        if (lidar_angles == nullptr) continue;
        const Pair<double> to = direction_backward(return_angles(call, view, x, y), v.direction);
        const int64_t at = ((static_cast<int64_t>(view) * call.height + y) * call.width + x) * 2;
        lidar_angles[at] = static_cast<float>(to.x);
        lidar_angles[at + 1] = static_cast<float>(to.y);
      } else {
        ray_of_pixel_backward<SensorKind>(sensor, pixel, v, add);
      }
    }
  }
  for (int i = 0; i < kRaySums; ++i) {
    const double total = block_total<kThreads>(own[i]);
    if (threadIdx.x == 0) sums[i] = total;
  }
}

// Sums over the parts of a view, in order, with a thread per sum.
__global__ void ray_totals_kernel(const double* partial, double* sensors, double* inverse_windshield) {
  const int field = static_cast<int>(threadIdx.x);
  const auto view = static_cast<int64_t>(blockIdx.x);
  if (field >= kRaySums) return;
  double sum = 0.0;
  for (int part = 0; part < kParts; ++part) sum += partial[(view * kParts + part) * kRaySums + field];
  if (field < kSensorSums) {
    sensors[view * kSensorSums + field] += sum;
  } else {
    inverse_windshield[view * (kRaySums - kSensorSums) + field - kSensorSums] = sum;
  }
}

__global__ void __launch_bounds__(kTilePixels)
    given_rays_backward_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ TileLists lists,
                               const float* v_rays, float* to) {
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  if (!place.on_film) return;
  const int64_t pixel = (static_cast<int64_t>(place.view) * call.height + place.y) * call.width + place.x;
  const Ray v = load_ray(v_rays, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
  given_ray_backward(call.scene.sensors[place.view], widened(v), call.scene.rays + kRayFloats * pixel,
                     to + kRayFloats * pixel);
}

}  // namespace

void cuda_rays_backward(const CudaCallData& data, const TileLists& lists, const float* rays, const float* v_rays,
                        const Gradients& gradients, cudaStream_t stream) {
  const CudaCall& call = data.call();
  const auto parts = static_cast<unsigned>(call.views) * kParts;
  if (call.scene.rays != nullptr) {
    const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
    launch(given_rays_backward_kernel, tiles, kTilePixels, 0, stream, call, lists, v_rays, gradients.rays);
    return;
  }
  const DeviceBuffer<double> partial(std::size_t{parts} * kRaySums, stream);
  each_sensor_lens(data, [&](auto lens, SensorLens number) {
    launch(ray_sums_kernel<decltype(lens)>, parts, kThreads, 0, stream, call, lists, rays, v_rays, number,
           partial.data(), gradients.lidar_angles);
  });
  static_assert(kRaySums <= kThreads);
  launch(ray_totals_kernel, static_cast<unsigned>(call.views), kThreads, 0, stream, partial.data(), gradients.sensors,
         gradients.inverse_windshield);
}

}  // namespace lumigrad::gaussians
