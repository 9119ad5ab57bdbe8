// Blends the surfels of each tile, with a thread per pixel, nearest first (sensors spec section 7).
#include "common/cuda/launch.h"
#include "gaussians/cuda/drawing.cuh"
#include "gaussians/cuda/surfels/pixel.cuh"
#include "gaussians/cuda/surfels/stages.h"

namespace lumigrad::gaussians {
namespace {

// Sums over the depths of a pixel.
struct PixelDepths {
  DepthSums<float> sums{};
  int median = 0;  // One past the list position of the Gaussian with the median depth, or 0.
};

template <int kFeatures, bool kDepths>
__device__ inline void visit(const CudaRecords& records, GaussianBatch& batch, int i, int first, const SurfelHit& hit,
                             const Limits& limits, Pixel<kFeatures>& pixel, PixelDepths& depths) {
  const float before = pixel.transmittance;
  const float weight = take(records, batch, i, first, hit.at.power, limits, pixel);
  if constexpr (kDepths) {
    if (!pixel.active) return;
    add_depth(depths.sums, true, weight, before, records.features_of(batch.item(i))[records.features.colors]);
    if (before > 0.5f) depths.median = batch.place(i) + 1;
  }
}

template <int kFeatures, bool kDepths>
__global__ void __launch_bounds__(kTilePixels, 3)
    draw_surfels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                        const __grid_constant__ TileLists lists, const __grid_constant__ Outputs outputs, int* lasts,
                        int* medians) {
  __shared__ GaussianBatch batch;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const PixelPlace at(call, place);
  const Limits limits(call.settings);
  const TileList list(lists);
  for (int first = 0; first == 0 || first < records.features.total(); first += kFeatures) {
    Pixel<kFeatures> pixel;
    PixelDepths depths;
    pixel.active = place.on_film;
    for (int position = 0; position < list.length; position += kTilePixels) {
      const int count = batch.fetch(lists, list, records, position);
      for (int begin = 0; begin < count && __any_sync(kWholeWarp, pixel.active); begin += kWarp) {
        for (unsigned rest = reaching(batch, begin, count, place); rest != 0; rest &= rest - 1) {
          const int i = begin + __ffs(static_cast<int>(rest)) - 1;
          if (!pixel.active) continue;
          const SurfelHit hit(batch.record(i), at, place, limits);
          if (hit.counts) visit<kFeatures, kDepths>(records, batch, i, first, hit, limits, pixel, depths);
        }
      }
      if (pixel.recent >= 0) pixel.last = batch.place(pixel.recent) + 1;
      pixel.recent = -1;
      if (__syncthreads_and(!pixel.active)) break;
    }
    if (!place.on_film) continue;
    write_pixel<true>(call, records.features, outputs, lasts, place.view, at.index, first, pixel);
    if (!kDepths || first > 0) continue;
    if (outputs.median_depth != nullptr) outputs.median_depth[at.index] = depths.sums.median;
    if (outputs.distortion != nullptr) outputs.distortion[at.index] = depths.sums.distortion;
    if (records.features.median_depth) medians[at.index] = depths.median;
  }
}

}  // namespace

void cuda_draw_surfels(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const Outputs& outputs,
                       int* lasts, int* medians, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  with_surfel_features(records.features, records.features.of_depths(), [&](auto features, auto depths) {
    launch(draw_surfels_kernel<decltype(features)::value, decltype(depths)::value>, tiles, kTilePixels, 0, stream, call,
           records, lists, outputs, lasts, medians);
  });
}

}  // namespace lumigrad::gaussians
