// Differentiates the blending along rays, from the last Gaussian of a tile to the first, as blend_backward.cu does on
// the film (sensors spec section 3.1).
#include "common/cuda/launch.h"
#include "gaussians/cuda/rays/pixel.cuh"
#include "gaussians/cuda/rays/stages.h"
#include "gaussians/cuda/row_sums.cuh"

namespace lumigrad::gaussians {
namespace {

// The upstream gradients of the distance and of the normal, in the frame of the camera at the start. Adds the gradient
// of the final transmittance to `pixel`.
struct GeometryUpstream {
  float distance = 0.0f;
  Triple<float> normal{};

  __device__ GeometryUpstream(const Sensor& s, PixelUpstream& pixel) {
    const Upstream& up = pixel.up;
    distance = value_at(up.d_hit_distance, pixel.index);
    if (up.d_expected_hit_distance != nullptr) {
      const auto e = expected_depth_backward(up.hit_distance[pixel.index], pixel.transmittance,
                                             up.d_expected_hit_distance[pixel.index]);
      distance += e.depth;
      pixel.transmittance_only += e.transmittance;
    }
    if (up.d_normals == nullptr) return;
    const float* v = up.d_normals + 3 * pixel.index;
    const auto turned = [&](int k) {
      const double* r = s.rotation + 3 * k;
      return fma(static_cast<float>(r[0]), v[0], fma(static_cast<float>(r[1]), v[1], static_cast<float>(r[2]) * v[2]));
    };
    normal = {turned(0), turned(1), turned(2)};
  }
};

// The constants of a block and of a thread's pixel.
template <bool kMotion>
struct Tile {
  const CudaRecords& records;
  const Limits& limits;
  const RayPixel<kMotion>& at;
  GaussianBatch& batch;
  RowSums<kRayFields, kRayFeatures>& sums;
  WarpBeams& beams;
  bool dropping;  // gsplat: whether distances, normals and rays have no gradient where alpha is clamped.
  int last;       // The pixel visits the list positions below this one.
  int first;      // The round's first feature.
};

// The results of a pass: rows of Gaussians, rows and gradients of rays, or only the sums for moving slices.
enum class Target { rows, rays, slices };

// The sums of a pixel for a moving slice.
struct PixelMotion {
  float* sums;
  __device__ void operator()(int index, float value) const { sums[index] = value; }
};

// Differentiates Gaussian `i` of the batch in one pixel; returns whether it contributed.
template <bool kGeometry, Target kTarget, bool kMotion>
__device__ inline bool visit(const Tile<kMotion>& tile, int i, const GeometryUpstream& up,
                             PixelRound<kRayFeatures>& pixel, RayRow<float>& row, float& weight, Ray& to_ray,
                             float* motion_sums) {
  const float* record = tile.batch.record(i);
  const RayHit hit(record, tile.at, tile.limits);
  if (!hit.counts) return false;
  float features[kRayFeatures], toward = 0.0f;
  load_features(tile.records, tile.batch.item(i), tile.first, features);
#pragma unroll
  for (int c = 0; c < kRayFeatures; ++c) toward = fma(features[c], pixel.gradient[c], toward);
  RayPull<float> pull{};
  // The first round includes the terms that do not depend on features.
  if (kGeometry && tile.first == 0) {
    pull.v_hit = up.distance;
    Triple<float> v_normal = up.normal;
    if (hit.motion != nullptr) v_normal = turned_back(*hit.motion, half_turn(*hit.motion, tile.at.time), v_normal);
    pull.v_normal = hit.ray.direction.z > 0.0f ? scaled(v_normal, -1.0f) : v_normal;
    toward = fma(distance_to(hit.at), up.distance, toward) + dot(normal_of(record, hit), v_normal);
  }
  const float full = exp2_bounded(hit.power);
  const float most = tile.limits.alpha_max;
  const auto v = visit_backward(full, min(full, most), most, toward, pixel.state);
  weight = v.weight;
  pull.v_sigma = v.v_sigma;
  pull.share = tile.dropping && full > tile.limits.alpha_max ? 0.0f : weight;
  const UnitRay<float> v_ray = add_to_row<kGeometry>(hit.ray, hit.at, pull, row);
  if (kTarget == Target::rays || (kTarget == Target::slices && hit.motion != nullptr)) {
    UnitRay<float> v_start = from_unit(record, v_ray);
    if (hit.motion != nullptr) {
      float unused[kSliceMotionSums];
      const PixelMotion add{kTarget == Target::slices ? motion_sums : unused};
      v_start = unmoved_backward(*hit.motion, tile.at.time, tile.at.seen(hit.motion), v_start, third_axis(record),
                                 scaled(pull.v_normal, pull.share), add);
    }
    to_ray.direction = to_ray.direction + v_start.direction;
    to_ray.origin = to_ray.origin + v_start.origin;
  }
  return true;
}

// Sums the gradients of the warp's pixels for up to 32 Gaussians of the batch from number `begin` on, the farthest
// first.
template <bool kGeometry, Target kTarget, bool kMotion>
__device__ inline void visit_group(const Tile<kMotion>& tile, int begin, int count, const GeometryUpstream& up,
                                   PixelRound<kRayFeatures>& pixel, Ray& to_ray) {
  unsigned filled = 0;
  for (unsigned rest = reaching(tile.at, tile.batch, begin, count, tile.beams.own(), tile.limits.log2_alpha_min);
       rest != 0;) {
    const int slot = kWarp - 1 - __clz(static_cast<int>(rest)), i = begin + slot;
    rest &= ~(1u << slot);
    RayRow<float> row{};
    float weight = 0.0f, motion[kRayFields] = {};
    bool took_part = false;
    if (tile.batch.place(i) < tile.last) {
      took_part = visit<kGeometry, kTarget>(tile, i, up, pixel, row, weight, to_ray, motion);
    }
    if (__ballot_sync(kWholeWarp, took_part) == 0) continue;
    filled |= 1u << slot;
    if constexpr (kTarget == Target::slices) {
      tile.sums.put(slot, 0, motion);
      continue;
    }
    float fields[kRayFields] = {row.xx, row.xy,  row.xz, row.yy, row.yz, row.zz, row.ox, row.oy,
                                row.oz, row.one, row.nx, row.ny, row.nz, 0.0f,   0.0f,   0.0f};
    float shares[RowSums<kRayFields, kRayFeatures>::kFeaturesRoom] = {};
#pragma unroll
    for (int c = 0; c < kRayFeatures; ++c) shares[c] = weight * pixel.gradient[c];
    tile.sums.put(slot, 0, fields);
    tile.sums.put(slot, kRayFields, shares);
  }
  tile.sums.mark(begin, filled);
}

template <bool kGeometry, Target kTarget, bool kMotion>
__global__ void __launch_bounds__(kTilePixels, 2)
    ray_pixels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                      const __grid_constant__ TileLists lists, const float* rays,
                      const __grid_constant__ Upstream upstream, const int* lasts,
                      const __grid_constant__ CudaRows rows, float* to_rays) {
  __shared__ GaussianBatch batch;
  __shared__ WarpBeams beams;
  __shared__ RowSums<kRayFields, kRayFeatures> sums;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const PixelPlace at(call, place);
  const RayPixel<kMotion> seen(call, place, rays);
  const Limits limits(call.settings);
  // Threads outside the image read the first pixel's values and visit no Gaussian.
  PixelUpstream up(call, records.features, upstream, place.view, place.on_film ? at.index : 0);
  const GeometryUpstream geometry(call.scene.sensors[place.view], up);
  beams.put(warp_beam(seen.ray, seen.time));
  Tile<kMotion> tile{records,
                     limits,
                     seen,
                     batch,
                     sums,
                     beams,
                     call.settings.frozen_projection != 0,
                     place.on_film ? lasts[at.index] : 0,
                     0};
  TileList list(lists);
  list.length = block_max(tile.last);
  Ray to_ray{};
  for (; list.length > 0 && (tile.first == 0 || tile.first < records.features.total()); tile.first += kRayFeatures) {
    PixelRound<kRayFeatures> pixel(up, tile.first, false);
    for (int position = (list.length - 1) / kTilePixels * kTilePixels; position >= 0; position -= kTilePixels) {
      const int count = batch.fetch(lists, list, records, position);
      for (int begin = (count - 1) / kWarp * kWarp; count > 0 && begin >= 0; begin -= kWarp) {
        visit_group<kGeometry, kTarget>(tile, begin, count, geometry, pixel, to_ray);
        __syncthreads();
        add_to_rows(call, records.places, rows, list, batch, sums, tile.first, begin, count);
        __syncthreads();
      }
      // Needed even if nothing was fetched, since the next batch overwrites this one.
      __syncthreads();
    }
  }
  if constexpr (kTarget == Target::rays)
    store_ray(to_ray, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x), to_rays);
}

}  // namespace

void cuda_blend_rays_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                              const float* rays, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                              float* to_rays, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  with_geometry(records.features, [&](auto geometry) {
    with_flag(call.scene.moving_slices > 0, [&](auto motion) {
      constexpr bool kGeometry = decltype(geometry)::value, kMotion = decltype(motion)::value;
      launch(to_rays != nullptr ? &ray_pixels_kernel<kGeometry, Target::rays, kMotion>
                                : &ray_pixels_kernel<kGeometry, Target::rows, kMotion>,
             tiles, kTilePixels, 0, stream, call, records, lists, rays, upstream, lasts, rows, to_rays);
    });
  });
}

void cuda_blend_slices_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                                const float* rays, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                                cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  with_geometry(records.features, [&](auto geometry) {
    launch(&ray_pixels_kernel<decltype(geometry)::value, Target::slices, true>, tiles, kTilePixels, 0, stream, call,
           records, lists, rays, upstream, lasts, rows, nullptr);
  });
}

}  // namespace lumigrad::gaussians
