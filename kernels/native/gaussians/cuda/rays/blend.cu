// Blends the Gaussians of each tile along the rays of its pixels, with a thread per pixel, nearest first (sensors spec
// section 3).
#include "common/cuda/launch.h"
#include "gaussians/cuda/drawing.cuh"
#include "gaussians/cuda/rays/pixel.cuh"
#include "gaussians/cuda/rays/stages.h"

namespace lumigrad::gaussians {
namespace {

// Sums that depend on more than the Gaussian.
struct Geometry {
  float distance = 0.0f;
  Triple<float> normal{};
};

template <bool kGeometry, bool kMotion>
__device__ inline void visit(const CudaRecords& records, GaussianBatch& batch, int i, int first,
                             const RayPixel<kMotion>& at, const Limits& limits, Pixel<kRayFeatures>& pixel,
                             Geometry& geometry) {
  const float* record = batch.record(i);
  const RayHit hit(record, at, limits);
  if (!hit.counts) return;
  const float weight = take(records, batch, i, first, hit.power, limits, pixel);
  if constexpr (kGeometry) {
    Triple<float> n = normal_of(record, hit);
    if (hit.motion != nullptr) n = turned_by(*hit.motion, half_turn(*hit.motion, at.time), n);
    geometry.distance = fma(weight, distance_to(hit.at), geometry.distance);
    geometry.normal = {fma(weight, n.x, geometry.normal.x), fma(weight, n.y, geometry.normal.y),
                       fma(weight, n.z, geometry.normal.z)};
  }
}

__device__ inline void write_geometry(const Sensor& s, const Features& features, const Outputs& out, int64_t index,
                                      float transmittance, const Geometry& geometry) {
  if (features.hit_distance) {
    if (out.hit_distance != nullptr) out.hit_distance[index] = geometry.distance;
    if (out.expected_hit_distance != nullptr) {
      out.expected_hit_distance[index] = geometry.distance / max(1.0f - transmittance, kLeastAlpha);
    }
  }
  if (!features.normals) return;
  // Turns from the frame of the camera at the start to the world.
  for (int k = 0; k < 3; ++k) {
    const auto r = [&](int row) { return static_cast<float>(s.rotation[3 * row + k]); };
    const Triple<float>& n = geometry.normal;
    out.normals[3 * index + k] = fma(r(0), n.x, fma(r(1), n.y, r(2) * n.z));
  }
}

template <bool kGeometry, bool kMotion>
__global__ void __launch_bounds__(kTilePixels, 3)
    draw_rays_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                     const __grid_constant__ TileLists lists, const float* rays,
                     const __grid_constant__ Outputs outputs, int* lasts) {
  __shared__ GaussianBatch batch;
  __shared__ WarpBeams beams;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const PixelPlace at(call, place);
  const RayPixel<kMotion> seen(call, place, rays);
  beams.put(warp_beam(seen.ray, seen.time));
  const Limits limits(call.settings);
  const TileList list(lists);
  for (int first = 0; first == 0 || first < records.features.total(); first += kRayFeatures) {
    Pixel<kRayFeatures> pixel;
    Geometry geometry;
    pixel.active = seen.ray.exists();
    for (int position = 0; position < list.length; position += kTilePixels) {
      const int count = batch.fetch(lists, list, records, position);
      for (int begin = 0; begin < count && __any_sync(kWholeWarp, pixel.active); begin += kWarp) {
        for (unsigned rest = reaching(seen, batch, begin, count, beams.own(), limits.log2_alpha_min); rest != 0;
             rest &= rest - 1) {
          const int i = begin + __ffs(static_cast<int>(rest)) - 1;
          if (pixel.active) visit<kGeometry>(records, batch, i, first, seen, limits, pixel, geometry);
        }
      }
      if (pixel.recent >= 0) pixel.last = batch.place(pixel.recent) + 1;
      pixel.recent = -1;
      if (__syncthreads_and(!pixel.active)) break;
    }
    if (!place.on_film) continue;
    write_pixel(call, records.features, outputs, lasts, place.view, at.index, first, pixel);
    if (kGeometry && first == 0) {
      write_geometry(call.scene.sensors[place.view], records.features, outputs, at.index, pixel.transmittance,
                     geometry);
    }
  }
}

}  // namespace

void cuda_draw_rays(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const float* rays,
                    const Outputs& outputs, int* lasts, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  with_geometry(records.features, [&](auto geometry) {
    with_flag(call.scene.moving_slices > 0, [&](auto motion) {
      launch(draw_rays_kernel<decltype(geometry)::value, decltype(motion)::value>, tiles, kTilePixels, 0, stream, call,
             records, lists, rays, outputs, lasts);
    });
  });
}

}  // namespace lumigrad::gaussians
