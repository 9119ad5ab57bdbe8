// Blends the images on the device: tiles in parallel, a thread per pixel, nearest first (spec section 1.7).
#include "common/cuda/launch.h"
#include "gaussians/cuda/drawing.cuh"
#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {
namespace {

template <int kFeatures>
__device__ inline void visit(const CudaRecords& records, GaussianBatch& batch, int i, int first, const PixelPlace& at,
                             const Limits& limits, Pixel<kFeatures>& pixel) {
  const Ellipse<float> e = ellipse_of<float>(batch.record(i));
  const float power = log2_alpha(e, e.x - at.x, e.y - at.y);
  if (power >= limits.log2_alpha_min) take(records, batch, i, first, power, limits, pixel);
}

template <int kFeatures>
__global__ void __launch_bounds__(kTilePixels, resident_blocks(kFeatures))
    draw_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                const __grid_constant__ TileLists lists, const __grid_constant__ Outputs outputs, int* lasts) {
  __shared__ GaussianBatch batch;
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const PixelPlace at(call, place);
  const Limits limits(call.settings);
  const TileList list(lists);
  const int total = kFeatures <= kInlineFeatures ? 1 : records.features.total();
  for (int first = 0; first < total; first += kFeatures) {
    Pixel<kFeatures> pixel;
    pixel.active = place.on_film;
    for (int position = 0; position < list.length; position += kTilePixels) {
      const int count = batch.fetch(lists, list, records, position);
      for (int begin = 0; begin < count && __any_sync(kWholeWarp, pixel.active); begin += kWarp) {
        for (unsigned rest = batch.reaching(begin, count, at, limits); rest != 0; rest &= rest - 1) {
          const int i = begin + __ffs(static_cast<int>(rest)) - 1;
          if (pixel.active) visit(records, batch, i, first, at, limits, pixel);
        }
      }
      if (pixel.recent >= 0) pixel.last = batch.place(pixel.recent) + 1;
      pixel.recent = -1;
      if (__syncthreads_and(!pixel.active)) break;
    }
    if (place.on_film) write_pixel(call, records.features, outputs, lasts, place.view, at.index, first, pixel);
  }
}

}  // namespace

void cuda_draw(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const Outputs& outputs,
               int* lasts, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  with_features(records.features.total(), [&](auto features) {
    constexpr int kFeatures = decltype(features)::value;
    launch(&draw_kernel<kFeatures>, tiles, kTilePixels, 0, stream, call, records, lists, outputs, lasts);
  });
}

}  // namespace lumigrad::gaussians
