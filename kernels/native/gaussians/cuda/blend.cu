// Blends the images on the device: tiles in parallel, a thread per pixel, nearest first (spec section 1.7).
#include "common/cuda/launch.h"
#include "gaussians/cuda/pixel.cuh"
#include "gaussians/cuda/stages.h"
#include "gaussians/math/blend.h"

namespace lumigrad::gaussians {
namespace {

template <int kFeatures>
struct Pixel {
  float transmittance = 1.0f;
  float sums[kFeatures] = {};
  int contributors = 0;
  int recent = -1;  // The last contributor's number in the current batch; -1: none.
  int last = 0;     // One past the position in the list of the last contributor from earlier batches; 0: none.
  bool active;
};

template <int kFeatures>
__device__ inline void visit(const CudaRecords& records, GaussianBatch& batch, int i, int first, const PixelPlace& at,
                             const Limits& limits, Pixel<kFeatures>& pixel) {
  const float* record = batch.record(i);
  const Ellipse<float> e = ellipse_of<float>(record);
  const float power = log2_alpha(e, e.x - at.x, e.y - at.y);
  if (!(power >= limits.log2_alpha_min)) return;
  const float alpha = min(exp2_bounded(power), limits.alpha_max);
  const float next = fma(-alpha, pixel.transmittance, pixel.transmittance);
  if (next < limits.ends_below) {
    pixel.active = false;
    return;
  }
  const float weight = alpha * pixel.transmittance;
  float features[kFeatures];
  load_features<kFeatures>(records, batch, i, first, features);
#pragma unroll
  for (int c = 0; c < kFeatures; ++c) pixel.sums[c] = fma(weight, features[c], pixel.sums[c]);
  pixel.transmittance = next;
  pixel.recent = i;
  ++pixel.contributors;
}

__device__ inline void write_feature(const CudaCall& call, const Features& features, const Outputs& out, int view,
                                     int64_t index, int f, float sum, float transmittance) {
  const int channels = features.colors;
  if (f < channels) {
    const float* background = call.scene.background;
    out.color[index * channels + f] =
        background != nullptr ? fma(transmittance, background[view * static_cast<int64_t>(channels) + f], sum) : sum;
  } else if (features.depth && f == channels) {
    if (out.depth != nullptr) out.depth[index] = sum;
    if (out.expected_depth != nullptr) out.expected_depth[index] = sum / max(1.0f - transmittance, kLeastAlpha);
  } else if (f < features.total() && out.inverse_depth != nullptr) {
    out.inverse_depth[index] = sum;
  }
}

template <int kFeatures>
__device__ inline void write_pixel(const CudaCall& call, const Features& features, const Outputs& out, int* lasts,
                                   int view, int64_t index, int first, const Pixel<kFeatures>& pixel) {
#pragma unroll
  for (int c = 0; c < kFeatures; ++c) {
    if (first + c >= features.total()) break;
    write_feature(call, features, out, view, index, first + c, pixel.sums[c], pixel.transmittance);
  }
  if (first > 0) return;
  if (out.alpha != nullptr) out.alpha[index] = 1.0f - pixel.transmittance;
  if (out.transmittance != nullptr) out.transmittance[index] = pixel.transmittance;
  if (out.contributors != nullptr) out.contributors[index] = pixel.contributors;
  if (lasts != nullptr) lasts[index] = pixel.last;
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
    launch(draw_kernel<decltype(features)::value>, tiles, kTilePixels, 0, stream, call, records, lists, outputs, lasts);
  });
}

}  // namespace lumigrad::gaussians
