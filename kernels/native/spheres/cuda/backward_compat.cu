// The backward pass of "compat" on the device: each pixel differentiates with respect to the spheres that it tracked.
#include "common/cuda/launch.h"
#include "spheres/cuda/rows.cuh"
#include "spheres/math/compat.h"

namespace lumigrad::spheres {
namespace {

// The sphere in a pixel's slot, -1 if there is none.
__device__ inline int tracked_id(const float* info, int slot, bool on_film, int spheres) {
  if (!on_film) return -1;
  const int id = reinterpret_cast<const int*>(info)[3 + 2 * slot];
  return static_cast<unsigned>(id) < static_cast<unsigned>(spheres) ? id : -1;
}

// Counts the pixels in which each sphere was tracked, on which the weights of camera terms depend.
__global__ void __launch_bounds__(kTilePixels) count_kernel(Camera camera, Settings settings, Scene scene,
                                                            const float* infos, CudaPrepared prepared, CudaRows to) {
  const TilePixel place = tile_pixel(prepared.lists, camera.width, camera.height);
  const int64_t index = static_cast<int64_t>(place.y) * camera.width + place.x;
  const float* info = infos + (place.on_film ? index : 0) * (3 + 2 * settings.n_track);
  for (int t = 0; t < settings.n_track; ++t) {
    const int id = tracked_id(info, t, place.on_film, scene.count);
    if (__ballot_sync(kWholeWarp, id >= 0) == 0) break;
    const unsigned group = __match_any_sync(kWholeWarp, id);
    if (id >= 0 && (group & lanes_below()) == 0) atomicAdd(to.touched + id, __popc(group));
  }
}

template <int kChannels>
__device__ inline float channel(const Scene& scene, const float* record, int id, int c) {
  if constexpr (kChannels == 3) return record[compat_record::kColor + c];
  return scene.colors[static_cast<int64_t>(id) * scene.channels + c];
}

// A pixel's upstream gradient, and its colour in the forward pass.
template <int kChannels>
struct PixelUpstream {
  const float* gradient;  // [K]; null off the film
  const float* image;     // [K]
  int channels;

  __device__ PixelUpstream(const Scene& scene, const Upstream& up, int64_t index, bool on_film)
      : gradient(on_film ? up.d_color + index * scene.channels : nullptr),
        image(on_film ? up.color + index * scene.channels : nullptr),
        channels(kChannels > 0 ? kChannels : scene.channels) {}
  __device__ float toward(const Scene& scene, const float* record, int id, float denominator, float weight,
                          float inverse_rest) const {
    float sum = 0.0f;
    for (int c = 0; c < channels; ++c) {
      sum += compat_channel(gradient[c], channel<kChannels>(scene, record, id, c), image[c], denominator, weight,
                            inverse_rest);
    }
    return sum;
  }
  __device__ float of(int c) const { return gradient != nullptr && c < channels ? gradient[c] : 0.0f; }
};

// Adds the colours that do not fit into the first 8 columns of a row. The whole warp must call it.
template <class Up>
__device__ inline void add_more_colors(const CudaRows& to, int id, const Up& up, float share) {
  for (int column = kCudaRow; column < to.width; column += kCudaRow) {
    float values[kCudaRow];
#pragma unroll
    for (int i = 0; i < kCudaRow; ++i) values[i] = up.of(column + i - kRowColor) * share;
    add_rows(to, id, column, values);
  }
}

template <bool kOrthogonal>
__device__ void add_camera(const Camera& camera, const TilePixel& place, const float (&ray)[3], double* sums) {
  if constexpr (kOrthogonal) {
    float values[1] = {ray[0]};
    add_block(values, sums + 12);
  } else {
    const auto x = static_cast<float>(place.x + camera.border_x), y = static_cast<float>(place.y + camera.border_y);
    float values[16] = {};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      values[i] = ray[i];
      values[3 + i] = ray[i] * x;
      values[6 + i] = ray[i] * y;
    }
    add_block(values, sums + 3);
  }
}

template <bool kOrthogonal, int kChannels>
__global__ void __launch_bounds__(kTilePixels)
    pairs_kernel(Camera camera, Settings settings, Scene scene, Upstream upstream, CudaPrepared prepared, CudaRows to,
                 bool wants_camera) {
  const TilePixel place = tile_pixel(prepared.lists, camera.width, camera.height);
  const int64_t index = static_cast<int64_t>(place.y) * camera.width + place.x;
  const float* info = upstream.info + (place.on_film ? index : 0) * (3 + 2 * settings.n_track);
  const CompatView view = compat_view(camera, settings);
  const auto ray = compat_ray<float, kOrthogonal>(camera, static_cast<float>(place.x + camera.border_x),
                                                  static_cast<float>(place.y + camera.border_y));
  const PixelUpstream<kChannels> up(scene, upstream, index, place.on_film);
  const float denominator = place.on_film ? info[1] : 1.0f;
  const CompatPixel<float> pixel{place.on_film ? info[0] : 0.0f, denominator, 1.0f / max(denominator, kFeps),
                                 1.0f / max(denominator * denominator, kFeps)};
  float ray_sums[3] = {};
  for (int t = 0; t < settings.n_track; ++t) {
    const int id = tracked_id(info, t, place.on_film, scene.count);
    if (__ballot_sync(kWholeWarp, id >= 0) == 0) break;
    float values[kCudaRow] = {};
    float share = 0.0f;
    if (id >= 0) {
      const float* record = &prepared.records[4 * static_cast<int64_t>(id)].x;
      const float area = prepared.area[id];
      const PairGradient<float> pair = compat_pair<float, kOrthogonal>(
          record, ray, view, pixel,
          [&](float weight, float inverse_rest) {
            return up.toward(scene, record, id, denominator, weight, inverse_rest);
          },
          area > 0.0f);
      share = pair.share;
      values[0] = pair.x;
      values[1] = pair.y;
      values[2] = pair.z;
      values[3] = pair.radius;
      values[4] = pair.opacity;
      for (int c = 0; c < 3; ++c) values[kRowColor + c] = up.of(c) * share;
      const float weight = wants_camera ? camera_weight(area, to.touched[id]) : 0.0f;
      ray_sums[0] += pair.ray_x * weight;
      ray_sums[1] += pair.ray_y * weight;
      ray_sums[2] += pair.ray_z * weight;
    }
    add_rows(to, id, 0, values);
    if (kChannels == 0) add_more_colors(to, id, up, share);
  }
  if (wants_camera) add_camera<kOrthogonal>(camera, place, ray_sums, to.sums);
}

using PairsKernel = void (*)(Camera, Settings, Scene, Upstream, CudaPrepared, CudaRows, bool);

PairsKernel choose(bool orthogonal, int channels) {
  if (orthogonal) return channels == 3 ? &pairs_kernel<true, 3> : &pairs_kernel<true, 0>;
  return channels == 3 ? &pairs_kernel<false, 3> : &pairs_kernel<false, 0>;
}

}  // namespace

void cuda_compat_pairs(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                       const CudaPrepared& prepared, const CudaRows& to, bool wants_camera, cudaStream_t stream) {
  if (scene.count == 0) return;
  const auto tiles = static_cast<unsigned>(prepared.lists.tiles_x * prepared.lists.tiles_y);
  launch(count_kernel, tiles, kTilePixels, 0, stream, camera, settings, scene, upstream.info, prepared, to);
  launch(choose(camera.orthogonal, scene.channels), tiles, kTilePixels, 0, stream, camera, settings, scene, upstream,
         prepared, to, wants_camera);
}

}  // namespace lumigrad::spheres
