// The rays of the pixels on the device, and beams that hold the rays of warps and tiles.
#pragma once

#include "common/cuda/tile_batch.cuh"
#include "gaussians/cuda/gaussian.cuh"
#include "gaussians/math/beam.h"

namespace lumigrad::gaussians {

// The ray of a pixel in the frame of the camera at the start; its direction has length 1, or is 0 where there is no
// ray.
struct Ray {
  Triple<float> direction, origin;

  __device__ bool exists() const { return dot(direction, direction) > 0.5f; }
};

inline constexpr int kRayFloats = 6;

// Rays, or their gradients, of a tile's pixels by thread: [V, tiles, kRayFloats, kTilePixels].
__device__ inline Ray load_ray(const float* rays, int tile, int thread) {
  const float* at = rays + static_cast<int64_t>(tile) * kRayFloats * kTilePixels + thread;
  const auto field = [&](int k) { return at[k * kTilePixels]; };
  return {{field(0), field(1), field(2)}, {field(3), field(4), field(5)}};
}
__device__ inline void store_ray(const Ray& ray, int tile, int thread, float* rays) {
  const float values[kRayFloats] = {ray.direction.x, ray.direction.y, ray.direction.z,
                                    ray.origin.x,    ray.origin.y,    ray.origin.z};
  float* at = rays + static_cast<int64_t>(tile) * kRayFloats * kTilePixels + thread;
#pragma unroll
  for (int k = 0; k < kRayFloats; ++k) at[k * kTilePixels] = values[k];
}

// Beams of the tiles of a view, of windows of tiles and of groups of windows: [V, n, kBeamFields].
struct CudaBeams {
  int windows_x, windows_y, groups_x, groups_y;
  float *tiles, *windows, *groups;
};

template <class F>
__device__ inline Beam<F> load_beam(const float* beams, int64_t number) {
  const float* b = beams + number * kBeamFields;
  return {{F(b[0]), F(b[1]), F(b[2])}, F(b[3]), F(b[4]), {F(b[5]), F(b[6]), F(b[7])}, F(b[8]), F(b[9]), F(b[10])};
}
template <class F>
__device__ inline void store_beam(const Beam<F>& b, int64_t number, float* beams) {
  const F values[kBeamFields] = {b.axis.x,   b.axis.y,   b.axis.z, b.cosine, b.sine, b.centre.x,
                                 b.centre.y, b.centre.z, b.radius, b.begin,  b.end};
  for (int k = 0; k < kBeamFields; ++k) beams[number * kBeamFields + k] = static_cast<float>(values[k]);
}

// The time at which a pixel is exposed.
__device__ inline float pixel_time(const CudaCall& call, const TilePixel& place) {
  const Sensor& sensor = call.scene.sensors[place.view];
  if (!is_rolling(sensor)) return 0.0f;
  const double time = Clock(call.view[place.view], sensor).time(Pair<double>{place.x + 0.5, place.y + 0.5});
  return min(max(static_cast<float>(time), 0.0f), 1.0f);
}

// The azimuth and the elevation of a lidar's return, radians.
__device__ inline Pair<double> return_angles(const CudaCall& call, int view, int x, int y) {
  const double* table = call.scene.lidar_angles + static_cast<int64_t>(view) * (2 * call.height + call.width);
  return {table[2 * call.height + x] + table[call.height + y], table[y]};
}

// The motion of an item's slice by its number (see ray_record::kMotion); null if it does not move.
__device__ inline const SliceMotion<float>* motion_of(const CudaCall& call, int view, float number) {
  return number < 0.0f ? nullptr : call.motions + view * call.scene.moving_slices + static_cast<int>(number);
}
__device__ inline bool reaches(const Beam<float>& beam, const SliceMotion<float>* motion, const RayBounds<float>& g) {
  return motion == nullptr ? reaches(beam, g) : reaches(unmoved(*motion, beam), g);
}

// The beam of the rays and times of several threads, which must call it together: sum(value) and largest(value) return
// the result over all of them to each thread.
template <class Sum, class Largest>
__device__ inline Beam<float> beam_of(const Ray& ray, float time, const Sum& sum, const Largest& largest) {
  const Triple<float>& d = ray.direction;
  const bool exists = ray.exists();
  const float count = sum(exists ? 1.0f : 0.0f);
  if (count == 0.0f) return empty_beam<float>();
  const Triple<float> total = {sum(d.x), sum(d.y), sum(d.z)};
  const float length = sqrt(dot(total, total));
  if (length < 0.2f * count) return full_beam<float>();
  const Triple<float> axis = scaled(total, 1.0f / length), apart = cross(axis, d);
  if (largest(exists && dot(axis, d) < 0.1f ? 1.0f : 0.0f) > 0.0f) return full_beam<float>();
  const auto mean = [&](float a) { return sum(exists ? a : 0.0f) / count; };
  const Triple<float> centre = {mean(ray.origin.x), mean(ray.origin.y), mean(ray.origin.z)};
  const Triple<float> off = {ray.origin.x - centre.x, ray.origin.y - centre.y, ray.origin.z - centre.z};
  const float sine = min(sqrt(largest(exists ? dot(apart, apart) : 0.0f)) * 1.00001f + 2e-6f, 1.0f);
  const float radius = sqrt(largest(exists ? dot(off, off) : 0.0f)) * 1.00001f + 1e-6f * sqrt(dot(centre, centre));
  const float begin = 1.0f - largest(exists ? 1.0f - time : 0.0f), end = largest(exists ? time : 0.0f);
  return {axis, sqrt(max((1.0f - sine) * (1.0f + sine), 0.0f)), sine, centre, radius, begin, end};
}

// The beams of the warps of a block.
struct WarpBeams {
  SharedArray<float, kTileWarps * kBeamFields> fields;

  // The beam of the calling warp.
  __device__ Beam<float> own() {
    const int first = static_cast<int>(threadIdx.x) / kWarp * kBeamFields;
    const auto at = [&](int k) { return fields[first + k]; };
    return {{at(0), at(1), at(2)}, at(3), at(4), {at(5), at(6), at(7)}, at(8), at(9), at(10)};
  }
  __device__ void put(const Beam<float>& b) {
    const int first = static_cast<int>(threadIdx.x) / kWarp * kBeamFields;
    const float values[kBeamFields] = {b.axis.x,   b.axis.y,   b.axis.z, b.cosine, b.sine, b.centre.x,
                                       b.centre.y, b.centre.z, b.radius, b.begin,  b.end};
    for (int k = 0; lane_index() == 0 && k < kBeamFields; ++k) fields[first + k] = values[k];
    __syncwarp();
  }
};

// Computes the beam of the calling warp.
__device__ inline Beam<float> warp_beam(const Ray& ray, float time) {
  const auto largest = [](float value) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      value = max(value, __shfl_xor_sync(kWholeWarp, value, offset));
    }
    return value;
  };
  return beam_of(ray, time, [](float value) { return warp_sum(value); }, largest);
}

// The tiles of a rectangle of pixels. For up to kMaskTiles tiles, a mask has a bit for each tile that a Gaussian
// reaches, row by row.
struct RayTiles {
  static constexpr int kMaskTiles = 64;
  int x, y, columns, rows;

  __device__ explicit RayTiles(const PixelRange& r) : x(r.x0 / kDeviceTile), y(r.y0 / kDeviceTile) {
    columns = (r.x1 + kDeviceTile - 1) / kDeviceTile - x;
    rows = (r.y1 + kDeviceTile - 1) / kDeviceTile - y;
  }
  __device__ int total() const { return columns * rows; }
  __device__ bool has_mask() const { return total() <= kMaskTiles; }
};

// See common/cuda/tile_lists.cuh.
struct RayReach {
  CudaRecords records;
  const unsigned long long* masks;  // [places] see RayTiles
  unsigned each;                    // The number of Gaussians of a scene.

  struct Tiles {
    RayTiles rectangle;
    unsigned long long mask;

    __device__ unsigned count() const {
      return static_cast<unsigned>(rectangle.has_mask() ? __popcll(mask) : rectangle.total());
    }
    // Each tile of the mask is a run.
    __device__ unsigned runs() const { return rectangle.has_mask() ? count() : static_cast<unsigned>(rectangle.rows); }
    __device__ TileRun run(unsigned number) const {
      int index = static_cast<int>(number) * rectangle.columns;
      if (rectangle.has_mask()) {
        unsigned long long rest = mask;
        for (unsigned i = 0; i < number; ++i) rest &= rest - 1;
        index = __popcll(~rest & (rest - 1));  // Index of the lowest bit.
      }
      return {static_cast<unsigned>(rectangle.y + index / rectangle.columns),
              static_cast<unsigned>(rectangle.x + index % rectangle.columns),
              static_cast<unsigned>(rectangle.has_mask() ? 1 : rectangle.columns)};
    }
  };
  __device__ unsigned view(unsigned item) const { return records.places.items[item] / each; }
  __device__ Tiles operator()(unsigned item) const { return {RayTiles(records.range(item)), masks[item]}; }
};

// Bits of the 32 Gaussians of a batch from `begin` on that may reach the warp's pixels. The whole warp must call
// it, each lane with its pixel.
template <class Pixel, class Batch>
__device__ inline unsigned reaching(const Pixel& pixel, Batch& batch, int begin, int count, const Beam<float>& beam,
                                    float log2_alpha_min) {
  const int i = begin + lane_index();
  bool reached = false;
  if (i < count) {
    const float* record = batch.record(i);
    reached = reaches(beam, pixel.motion(record), ray_bounds_of(record, log2_alpha_min));
  }
  return __ballot_sync(kWholeWarp, reached);
}

}  // namespace lumigrad::gaussians
