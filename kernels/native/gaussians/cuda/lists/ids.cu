// Finds the Gaussian with the largest weight in each pixel: a thread per pixel visits the list of its tile once more,
// as the blending did.
#include "gaussians/cuda/lists/ids.h"

#include "common/cuda/launch.h"
#include "gaussians/cuda/rays/pixel.cuh"
#include "gaussians/cuda/surfels/pixel.cuh"

namespace lumigrad::gaussians {
namespace {

// The view of a thread: whether its pixel exists, which Gaussians of a batch may reach its warp, and log2 of an alpha,
// far below any limit if it does not count. Each view evaluates exactly the same expression as the blending.
inline constexpr float kNone = -kNowhere;

struct EllipseView {
  const TilePixel& place;
  PixelPlace at;

  __device__ EllipseView(const CudaCall& call, const TilePixel& of, const float*) : place(of), at(call, of) {}
  __device__ bool exists() const { return place.on_film; }
  __device__ unsigned may_reach(GaussianBatch& batch, int begin, int count, const Limits& limits) const {
    return batch.reaching(begin, count, at, limits);
  }
  __device__ float power(const float* record, const Limits&) const {
    const Ellipse<float> e = ellipse_of<float>(record);
    return log2_alpha(e, e.x - at.x, e.y - at.y);
  }
};

struct SurfelView {
  const TilePixel& place;
  PixelPlace at;

  __device__ SurfelView(const CudaCall& call, const TilePixel& of, const float*) : place(of), at(call, of) {}
  __device__ bool exists() const { return place.on_film; }
  __device__ unsigned may_reach(GaussianBatch& batch, int begin, int count, const Limits&) const {
    return reaching(batch, begin, count, place);
  }
  __device__ float power(const float* record, const Limits& limits) const {
    const SurfelHit hit(record, at, place, limits);
    return hit.counts ? hit.at.power : kNone;
  }
};

struct RayView {
  RayPixel<true> seen;
  Beam<float> beam;

  __device__ RayView(const CudaCall& call, const TilePixel& of, const float* rays)
      : seen(call, of, rays), beam(warp_beam(seen.ray, seen.time)) {}
  __device__ bool exists() const { return seen.ray.exists(); }
  __device__ unsigned may_reach(GaussianBatch& batch, int begin, int count, const Limits& limits) const {
    return reaching(seen, batch, begin, count, beam, limits.log2_alpha_min);
  }
  __device__ float power(const float* record, const Limits& limits) const {
    const RayHit hit(record, seen, limits);
    return hit.counts ? hit.power : kNone;
  }
};

struct Found {
  bool active;
  float transmittance = 1.0f, weight = 0.0f;
  int item = -1;

  __device__ void visit(float power, unsigned number, const Limits& limits) {
    if (!(power >= limits.log2_alpha_min)) return;
    const float alpha = min(exp2_bounded(power), limits.alpha_max);
    const float next = fma(-alpha, transmittance, transmittance);
    if (next < limits.ends_below) {
      active = false;
      return;
    }
    const float own = alpha * transmittance;
    transmittance = next;
    if (own <= weight) return;
    weight = own;
    item = static_cast<int>(number);
  }
};

template <class Seen>
__global__ void __launch_bounds__(kTilePixels, 3)
    ids_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
               const __grid_constant__ TileLists lists, const float* rays, int32_t* ids) {
  __shared__ GaussianBatch batch;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const Seen seen(call, place, rays);
  const Limits limits(call.settings);
  const TileList list(lists);
  Found found{seen.exists()};
  for (int position = 0; position < list.length; position += kTilePixels) {
    const int count = batch.fetch(lists, list, records, position);
    for (int begin = 0; begin < count && __any_sync(kWholeWarp, found.active); begin += kWarp) {
      for (unsigned rest = seen.may_reach(batch, begin, count, limits); rest != 0; rest &= rest - 1) {
        const int i = begin + __ffs(static_cast<int>(rest)) - 1;
        if (found.active) found.visit(seen.power(batch.record(i), limits), batch.item(i), limits);
      }
    }
    if (__syncthreads_and(!found.active)) break;
  }
  if (!place.on_film) return;
  int id = -1;
  if (found.item >= 0) id = static_cast<int>(records.places.items[found.item]) - place.view * call.scene.count;
  ids[PixelPlace(call, place).index] = id;
}

}  // namespace

DeviceTimer cuda_ids(const View* views, int count, const Settings& settings, const Scene& scene, int32_t* ids,
                     const CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaCallData data(views, count, settings, scene, workspace, stream);
  const TileLists& lists = pass.lists;
  const CudaRecords records = records_of(pass);
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  const auto run = [&](auto* kernel) {
    launch(kernel, tiles, kTilePixels, 0, stream, data.call(), records, lists, pass.rays.data(), ids);
  };
  if (settings.surfels) {
    run(&ids_kernel<SurfelView>);
  } else if (settings.rays) {
    run(&ids_kernel<RayView>);
  } else {
    run(&ids_kernel<EllipseView>);
  }
  timer.mark("blend");
  return timer;
}

}  // namespace lumigrad::gaussians
