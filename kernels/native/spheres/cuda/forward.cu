// The forward pass on the device: tiles in parallel, with a thread per pixel.
#include "common/cuda/launch.h"
#include "spheres/cuda/pixel.cuh"

namespace lumigrad::spheres {
namespace {

// Not inlined, since it is rarely called and inlining would cost registers.
template <bool kExact, bool kOrthogonal>
__device__ __noinline__ float tracked_share(const Camera& camera, const Settings& settings, const CudaExactView& view,
                                            const float* record, int x, int y, float maximum, float low,
                                            float denominator) {
  const auto px = static_cast<float>(x), py = static_cast<float>(y);
  if constexpr (kExact) {
    const auto ray = exact_ray<float, kOrthogonal>(view, px, py);
    return exact_share<float>(record, exact_geometry<float, kOrthogonal>(record, ray, view, true), maximum, low,
                              denominator);
  } else {
    const auto ray = compat_ray<float, kOrthogonal>(camera, px + static_cast<float>(camera.border_x),
                                                    py + static_cast<float>(camera.border_y));
    return compat_share<float>(record, compat_geometry<float, kOrthogonal>(record, ray, compat_view(camera, settings)),
                               maximum, denominator);
  }
}

// Ids are stored as integers: read as floats they are denormals and NaN, which float operations may change.
template <class Pixel>
__device__ void write_info(const Pixel& pixel, float maximum, float* info) {
  info[0] = maximum;
  info[1] = pixel.denominator;
  info[2] = pixel.max_near;
  int* words = reinterpret_cast<int*>(info);
  pixel.tracker.each([&](int t, int id, float depth) {
    words[3 + 2 * t] = id;
    info[4 + 2 * t] = depth;
  });
}

template <bool kExact, bool kOrthogonal, class Pixel>
__device__ void write_pixel(const Camera& camera, const Settings& settings, const Scene& scene, const Outputs& out,
                            const CudaPrepared& prepared, const Pixel& pixel, int x, int y) {
  const int64_t index = static_cast<int64_t>(y) * camera.width + x;
  const int track = pixel.tracker.wanted;
  const float denominator = pixel.denominator;
  const float inverse = 1.0f / (kExact ? denominator : max(denominator, kFeps));
  if (out.color != nullptr) pixel.color.write(scene, out.color + index * scene.channels, inverse);
  if (out.alpha != nullptr) {
    const float background = kExact ? exact_background(prepared.view, pixel.maximum, pixel.low) : pixel.low;
    out.alpha[index] = 1.0f - background * inverse;
  }
  if (out.info != nullptr) {
    write_info(pixel, kExact ? pixel.maximum + pixel.low : pixel.maximum, out.info + index * (3 + 2 * track));
  }
  const auto share = [&](int id) {
    if (id < 0) return 0.0f;
    const float* record = &prepared.records[4 * static_cast<int64_t>(id)].x;
    return tracked_share<kExact, kOrthogonal>(camera, settings, prepared.view, record, x, y, pixel.maximum, pixel.low,
                                              denominator);
  };
  pixel.tracker.each([&](int t, int id, float depth) {
    if (t == 0 && out.depth != nullptr) out.depth[index] = depth;
    if (out.ids != nullptr) out.ids[index * track + t] = id;
    if (out.weights != nullptr) out.weights[index * track + t] = share(id);
  });
  if (out.hits != nullptr) out.hits[index] = pixel.hits;
  if (out.blend != nullptr) {
    out.blend[index * 3] = pixel.maximum;
    out.blend[index * 3 + 1] = pixel.low;
    out.blend[index * 3 + 2] = denominator;
  }
  if (out.stop != nullptr) out.stop[index] = pixel.stop;
}

template <bool kOrthogonal, class Pixel>
__device__ void draw_compat_tile(const Camera& camera, const Settings& settings, const Scene& scene,
                                 const CudaPrepared& prepared, SphereBatch& batch, const TilePixel& place,
                                 Pixel& pixel) {
  const CompatView view = compat_view(camera, settings);
  const auto ray = compat_ray<float, kOrthogonal>(camera, static_cast<float>(place.x + camera.border_x),
                                                  static_cast<float>(place.y + camera.border_y));
  const TileList list(prepared.lists);
  for (int position = 0; position < list.length; position += kTilePixels) {
    const int count = batch.fetch(prepared, list, position);
    for (int begin = 0; begin < count && __any_sync(kWholeWarp, pixel.active); begin += kWarp) {
      for (unsigned rest = batch.reaching(begin, count, place); rest != 0; rest &= rest - 1) {
        const int i = begin + __ffs(static_cast<int>(rest)) - 1;
        if (!pixel.active || !batch.reaches(i, place)) continue;
        draw_compat<kOrthogonal>(pixel, scene, settings, view, ray, batch.record(i), batch.id(i));
      }
    }
    if (__syncthreads_and(!pixel.active)) break;
  }
}

template <bool kOrthogonal, class Pixel>
__device__ void draw_exact_tile(const Settings& settings, const Scene& scene, const CudaPrepared& prepared,
                                SphereBatch& batch, const TilePixel& place, Pixel& pixel) {
  const CudaExactView& view = prepared.view;
  const auto ray = exact_ray<float, kOrthogonal>(view, static_cast<float>(place.x), static_cast<float>(place.y));
  const TileList list(prepared.lists);
  for (int position = 0; position < list.length; position += kTilePixels) {
    const int count = batch.fetch(prepared, list, position);
    for (int begin = 0; begin < count && __any_sync(kWholeWarp, pixel.active); begin += kWarp) {
      for (unsigned rest = batch.reaching(begin, count, place); rest != 0; rest &= rest - 1) {
        const int i = begin + __ffs(static_cast<int>(rest)) - 1;
        if (!pixel.active || !batch.reaches(i, place)) continue;
        draw_exact<kOrthogonal>(pixel, scene, settings, view, ray, batch.record(i), batch.id(i), batch.ranks[i]);
      }
      // All later spheres of the list are behind the last sphere of this group.
      const int last = ::min(begin + kWarp, count) - 1, remaining = list.length - position - last - 1;
      if (pixel.active && exact_may_stop<float>(settings, exact_bound(view, exact_near(batch.record(last))), remaining,
                                                pixel.maximum, pixel.low, pixel.denominator)) {
        pixel.stop = static_cast<int>(batch.ranks[last]) + 1;
        pixel.active = false;
      }
    }
    if (__syncthreads_and(!pixel.active)) break;
  }
}

// A view's part of the call.
struct DrawnView {
  Camera camera;
  CudaPrepared prepared;
  Outputs outputs;
};

template <bool kExact, bool kOrthogonal, int kChannels, int kRoom>
__global__ void __launch_bounds__(kTilePixels, kExact ? 3 : 4)
    draw_kernel(const __grid_constant__ Settings settings, const __grid_constant__ Scene scene,
                const __grid_constant__ TileLists lists, const DrawnView* views) {
  __shared__ DrawnView view;
  __shared__ SphereBatch batch;
  load_view(view, views[view_of_block(lists)]);
  const Camera& camera = view.camera;
  const CudaPrepared& prepared = view.prepared;
  if ((camera.orthogonal != 0) != kOrthogonal) return;
  const TilePixel place = tile_pixel(lists, camera.width, camera.height);
  float maximum = settings.background_depth / settings.gamma, low = 1.0f;
  if constexpr (kExact) {
    maximum = prepared.view.background_high;
    low = prepared.view.background_low;
  }
  float* image = view.outputs.color;
  if (image != nullptr) {
    image = place.on_film ? image + (static_cast<int64_t>(place.y) * camera.width + place.x) * scene.channels : nullptr;
  }
  CudaPixel<kChannels, kRoom> pixel(maximum, low, scene, settings, image, place.on_film);
  if constexpr (kExact) {
    draw_exact_tile<kOrthogonal>(settings, scene, prepared, batch, place, pixel);
  } else {
    draw_compat_tile<kOrthogonal>(camera, settings, scene, prepared, batch, place, pixel);
  }
  if (place.on_film) {
    write_pixel<kExact, kOrthogonal>(camera, settings, scene, view.outputs, prepared, pixel, place.x, place.y);
  }
}

using DrawKernel = void (*)(Settings, Scene, TileLists, const DrawnView*);

template <bool kExact, bool kOrthogonal, int kChannels>
DrawKernel choose(int track) {
  if (track <= 5) return &draw_kernel<kExact, kOrthogonal, kChannels, 5>;
  return &draw_kernel<kExact, kOrthogonal, kChannels, kMaxTrack>;
}

template <bool kExact, bool kOrthogonal>
DrawKernel choose(int channels, int track) {
  return channels == 3 ? choose<kExact, kOrthogonal, 3>(track) : choose<kExact, kOrthogonal, 0>(track);
}

DrawKernel choose(bool orthogonal, const Settings& settings, const Scene& scene) {
  const int k = scene.channels, track = settings.n_track;
  if (settings.exact) return orthogonal ? choose<true, true>(k, track) : choose<true, false>(k, track);
  return orthogonal ? choose<false, true>(k, track) : choose<false, false>(k, track);
}

Outputs of_view(const Outputs& all, const Camera& camera, const Scene& scene, int track, std::size_t view) {
  const auto part = [&](auto* image, int values) { return spheres::of_view(image, camera, view, values); };
  return {part(all.color, scene.channels),
          nullptr,
          part(all.alpha, 1),
          part(all.depth, 1),
          part(all.info, 3 + 2 * track),
          part(all.ids, track),
          part(all.weights, track),
          part(all.hits, 1),
          part(all.blend, 3),
          part(all.stop, 1)};
}

}  // namespace

DeviceTimer cuda_forward(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  cuda_prepare(cameras, settings, scene, pass, workspace, timer, stream);
  const std::vector<CudaPrepared> prepared = prepared_of(cameras, settings, scene, pass);
  std::vector<DrawnView> views;
  for (std::size_t v = 0; v < cameras.size(); ++v) {
    views.push_back({cameras[v], prepared[v], of_view(outputs, cameras[v], scene, settings.n_track, v)});
  }
  const DeviceBuffer<DrawnView> on_device = uploaded(views, workspace, stream);
  each_projection(cameras, [&](bool orthogonal) {
    launch(choose(orthogonal, settings, scene), tiles_of(pass.lists), kTilePixels, 0, stream, settings, scene,
           pass.lists, on_device.data());
  });
  timer.mark("blend");
  return timer;
}

}  // namespace lumigrad::spheres
