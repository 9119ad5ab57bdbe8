// Computes the rays of the pixels and their beams, with a block for each tile, and the records of Gaussians along rays.
#include <type_traits>

#include "common/cuda/tile_lists.cuh"
#include "gaussians/cuda/rays/field.cuh"
#include "gaussians/cuda/rays/stages.h"
#include "gaussians/math/sensor/rays.h"

namespace lumigrad::gaussians {
namespace {

// Combines the values of all threads of the block; returns the result to every thread.
template <class Combine>
__device__ inline float over_block(float value, const Combine& combine) {
  __shared__ SharedArray<float, kTileWarps> partial;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, offset));
  }
  __syncthreads();
  if (lane_index() == 0) partial[static_cast<int>(threadIdx.x) / kWarp] = value;
  __syncthreads();
  float total = partial[0];
  for (int warp = 1; warp < kTileWarps; ++warp) total = combine(total, partial[warp]);
  return total;
}

__device__ inline void store_tile(const Ray& ray, float time, float* rays, float* beams) {
  const int tile = static_cast<int>(blockIdx.x);
  store_ray(ray, tile, static_cast<int>(threadIdx.x), rays);
  const Beam<float> beam = beam_of(
      ray, time, [](float value) { return over_block(value, [](float a, float b) { return a + b; }); },
      [](float value) { return over_block(value, [](float a, float b) { return max(a, b); }); });
  if (threadIdx.x == 0) store_beam(beam, tile, beams);
}

__device__ inline Ray narrowed(const Triple<double>& direction, const Triple<double>& origin) {
  return {{static_cast<float>(direction.x), static_cast<float>(direction.y), static_cast<float>(direction.z)},
          {static_cast<float>(origin.x), static_cast<float>(origin.y), static_cast<float>(origin.z)}};
}

template <class SensorKind>
__global__ void __launch_bounds__(kTilePixels)
    lens_rays_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ TileLists lists, float* rays,
                     float* beams, SensorLens lens) {
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const Sensor& sensor = call.scene.sensors[place.view];
  if (sensor.lens != lens) return;
  Ray ray{};
  if (place.on_film) {
    const Pair<double> pixel = {place.x + 0.5, place.y + 0.5};
    CameraRay<double> own{};
    if constexpr (std::is_same_v<SensorKind, SpinningLidar>) {
      own.direction = direction_at(return_angles(call, place.view, place.x, place.y));
    } else {
      own = ray_of_pixel<SensorKind>(sensor, pixel);
    }
    const auto found = to_start(call.view[place.view], sensor, pixel, own);
    ray = narrowed(found.direction, found.origin);
  }
  store_tile(ray, pixel_time(call, place), rays, beams);
}

__global__ void __launch_bounds__(kTilePixels)
    given_rays_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ TileLists lists, float* rays,
                      float* beams) {
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  Ray ray{};
  if (place.on_film) {
    const int64_t pixel = (static_cast<int64_t>(place.view) * call.height + place.y) * call.width + place.x;
    const auto found = given_ray(call.scene.sensors[place.view], call.scene.rays + kRayFloats * pixel);
    ray = narrowed(found.direction, found.origin);
  }
  store_tile(ray, pixel_time(call, place), rays, beams);
}

// Joins the grids of `columns` x `rows` beams of all views into beams of windows of 4 x 4, with a thread per window.
__global__ void join_kernel(int views, int columns, int rows, const float* beams, float* to) {
  const int across = (columns + kWindowSize - 1) >> kWindowBits, down = (rows + kWindowSize - 1) >> kWindowBits;
  const auto number = static_cast<int64_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (number >= static_cast<int64_t>(views) * across * down) return;
  const int64_t first = number / (across * down) * columns * rows;
  const int window = static_cast<int>(number % (across * down));
  Beam<double> parts[kWindowSize * kWindowSize];
  int count = 0;
  for (int i = 0; i < kWindowSize * kWindowSize; ++i) {
    const int x = window % across * kWindowSize + i % kWindowSize, y = window / across * kWindowSize + i / kWindowSize;
    if (x < columns && y < rows) parts[count++] = load_beam<double>(beams, first + y * columns + x);
  }
  store_beam(joined(parts, count), number, to);
}

// A growing rectangle of tiles.
struct Bounds {
  int x0, x1, y0, y1;
  __device__ void add(int x, int y) {
    x0 = ::min(x0, x);
    x1 = ::max(x1, x + kWindowSize);
    y0 = ::min(y0, y);
    y1 = ::max(y1, y + kWindowSize);
  }
};

// The pixels of the windows that a Gaussian may reach.
__device__ inline PixelRange reached_windows(const CudaCall& call, const CudaBeams& beams, int view,
                                             const SliceMotion<float>* motion, const RayBounds<float>& g) {
  Bounds b = {call.width, 0, call.height, 0};
  const int64_t groups = static_cast<int64_t>(view) * beams.groups_x * beams.groups_y;
  const int64_t windows = static_cast<int64_t>(view) * beams.windows_x * beams.windows_y;
  for (int group = 0; group < beams.groups_x * beams.groups_y; ++group) {
    if (!reaches(load_beam<float>(beams.groups, groups + group), motion, g)) continue;
    const int left = group % beams.groups_x << kWindowBits, top = group / beams.groups_x << kWindowBits;
    for (int y = top; y < ::min(top + kWindowSize, beams.windows_y); ++y) {
      for (int x = left; x < ::min(left + kWindowSize, beams.windows_x); ++x) {
        const int64_t window = windows + y * beams.windows_x + x;
        if (reaches(load_beam<float>(beams.windows, window), motion, g)) b.add(x << kWindowBits, y << kWindowBits);
      }
    }
  }
  if (b.x0 >= b.x1) return {0, 0, 0, 0};
  return {b.x0 * kDeviceTile, ::min(::min(b.x1 * kDeviceTile, call.width), kLargestEdge), b.y0 * kDeviceTile,
          ::min(b.y1 * kDeviceTile, call.height)};
}

// The mask of the tiles that a Gaussian may reach, if they are few enough for a mask.
__device__ inline unsigned long long reached_tiles(const TileLists& lists, const CudaBeams& beams, int view,
                                                   const RayTiles& tiles, const SliceMotion<float>* motion,
                                                   const RayBounds<float>& g) {
  unsigned long long mask = 0;
  for (int i = 0; i < tiles.total(); ++i) {
    const int64_t row = static_cast<int64_t>(view) * lists.tiles_y + tiles.y + i / tiles.columns;
    const int64_t tile = row * lists.tiles_x + tiles.x + i % tiles.columns;
    if (reaches(load_beam<float>(beams.tiles, tile), motion, g)) mask |= 1ull << i;
  }
  return mask;
}

// The pixels that a Gaussian may reach and, if they span few tiles, the mask of its tiles (see RayReach).
struct RayRange {
  PixelRange range{};
  unsigned long long mask = 0;
};

// Replaces the record of an ellipse that reaches pixels by its record along rays, except for its range.
__device__ inline RayRange replace_record(const CudaCall& call, const TileLists& lists, const CudaBeams& beams,
                                          const GaussianPlace& place, float4* quarters) {
  const int view = place.outer;
  const SensorPlace at{call.view[view], call.scene.sensors[view], call.scene.slice_poses[place.slice], call.settings};
  const int64_t index = static_cast<int64_t>(call.view[view].scene) * call.scene.count + place.number;
  double fields[ray_record::kLog2Opacity];
  write_ray_record(ray_body(at, gaussian64_of(call.scene, index)), fields);
  const float* record = &quarters->x;
  float r[kRecordFloats] = {};
  for (int i = 0; i < ray_record::kLog2Opacity; ++i) r[i] = static_cast<float>(fields[i]);
  r[ray_record::kLog2Opacity] = record[record::kLog2Opacity];
  r[ray_record::kMotion] = static_cast<float>(at.slice.moving);
  const auto* motion = motion_of(call, view, r[ray_record::kMotion]);
  const RayBounds<float> g = ray_bounds_of(r, log2_positive(call.settings.alpha_min));
  const bool on_film = call.settings.gsplat_bounds && at.sensor.lens != SensorLens::lidar;
  RayRange found{on_film ? range_of(record) : reached_windows(call, beams, view, motion, g)};
  const RayTiles tiles(found.range);
  if (tiles.has_mask()) {
    found.mask = reached_tiles(lists, beams, view, tiles, motion, g);
    if (found.mask == 0) found.range = {};
  }
  for (int i = 0; i < kRecordQuarters - 1; ++i) {
    quarters[i] = make_float4(r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
  }
  quarters[kRecordQuarters - 1].x = r[kRecordFloats - 4];
  quarters[kRecordQuarters - 1].y = r[kRecordFloats - 3];
  return found;
}

// Replaces the records of ellipses by records along rays.
__global__ void __launch_bounds__(kGaussianThreads)
    ray_records_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ TileLists lists,
                       const __grid_constant__ ProjectTarget to, const __grid_constant__ CudaBeams beams,
                       unsigned long long* masks) {
  const GaussianPlace g = gaussian_place(call);
  const Placed placed = to.records.places.find(call, g.outer, g);
  unsigned tiles = 0;
  if (placed.drawn) {
    float* record = to.records.record(placed.place);
    const RayRange found =
        replace_record(call, lists, beams, g, to.records.records + int64_t{kRecordQuarters} * placed.place);
    const PixelRange& range = found.range;
    if (!reaches_pixels(range)) to.keys[placed.place] = kBehindAll;
    masks[placed.place] = found.mask;
    record[kColumns + kRangeAtEnd] =
        __uint_as_float(static_cast<unsigned>(range.x0) | static_cast<unsigned>(range.x1) << 16);
    record[kRows + kRangeAtEnd] =
        __uint_as_float(static_cast<unsigned>(range.y0) | static_cast<unsigned>(range.y1) << 16);
    if (reaches_pixels(range)) tiles = RayReach::Tiles{RayTiles(range), found.mask}.count();
  }
  count_tiles(to.counts, placed.drawn, placed.place, tiles);
}

constexpr unsigned kJoinThreads = 64;

}  // namespace

void cuda_rays(const CudaCallData& data, const TileLists& lists, const ProjectTarget& to, float* rays,
               unsigned long long* masks, cudaStream_t stream) {
  const CudaCall& call = data.call();
  const int views = call.views, windows_x = (lists.tiles_x + kWindowSize - 1) >> kWindowBits,
            windows_y = (lists.tiles_y + kWindowSize - 1) >> kWindowBits,
            groups_x = (windows_x + kWindowSize - 1) >> kWindowBits,
            groups_y = (windows_y + kWindowSize - 1) >> kWindowBits;
  const std::size_t tiles = static_cast<std::size_t>(views) * lists.tiles_x * lists.tiles_y,
                    windows = static_cast<std::size_t>(views) * windows_x * windows_y,
                    groups = static_cast<std::size_t>(views) * groups_x * groups_y;
  const DeviceBuffer<float> memory((tiles + windows + groups) * kBeamFields, stream);
  float* of_windows = memory.data() + tiles * kBeamFields;
  const CudaBeams beams{
      windows_x, windows_y, groups_x, groups_y, memory.data(), of_windows, of_windows + windows * kBeamFields};
  const auto blocks = static_cast<unsigned>(tiles);
  if (call.scene.rays != nullptr) {
    launch(given_rays_kernel, blocks, kTilePixels, 0, stream, call, lists, rays, beams.tiles);
  } else {
    each_sensor_lens(data, [&](auto lens, SensorLens number) {
      launch(lens_rays_kernel<decltype(lens)>, blocks, kTilePixels, 0, stream, call, lists, rays, beams.tiles, number);
    });
  }
  launch(join_kernel, blocks_for(windows, kJoinThreads), kJoinThreads, 0, stream, views, lists.tiles_x, lists.tiles_y,
         beams.tiles, beams.windows);
  launch(join_kernel, blocks_for(groups, kJoinThreads), kJoinThreads, 0, stream, views, windows_x, windows_y,
         beams.windows, beams.groups);
  launch(ray_records_kernel, static_cast<unsigned>(views * call.blocks), kGaussianThreads, 0, stream, call, lists, to,
         beams, masks);
}

}  // namespace lumigrad::gaussians
