// The backward pass of "exact" on the device: tiles iterate over their spheres again, and sum the gradients of the
// pixels that a sphere hits into its row.
#include "common/cuda/launch.h"
#include "spheres/cuda/rows.cuh"
#include "spheres/math/blend.h"

namespace lumigrad::spheres {
namespace {

// The number of blocks for which a multiprocessor should have enough registers.
template <bool kOrthogonal, int kChannels>
constexpr int resident_blocks() {
  return kOrthogonal && kChannels == 3 ? 4 : 3;
}

template <int kChannels>
__device__ inline float channel(const Scene& scene, const float* record, unsigned id, int c) {
  if constexpr (kChannels == 3) return record[exact_record::kColor + c];
  return scene.colors[static_cast<int64_t>(id) * scene.channels + c];
}

// The upstream gradients of a pixel, and its state at the end of the forward pass.
template <int kChannels>
struct PixelUpstream {
  const float* gradient;  // dL/d colour, [K]; null if 0
  int channels;
  int stop = 0;        // Spheres of this and higher ranks were not visited.
  int closest = -1;    // The sphere whose depth the pixel has, or -1
  float depth = 0.0f;  // dL/d depth
  float alpha = 0.0f;  // dL/d alpha
  ExactPixel<float> pixel{};

  __device__ PixelUpstream(const Settings& settings, const Scene& scene, const Upstream& up, int64_t index,
                           bool on_film)
      : gradient(on_film && up.d_color != nullptr ? up.d_color + index * scene.channels : nullptr),
        channels(kChannels > 0 ? kChannels : scene.channels) {
    if (!on_film) return;
    stop = up.stop[index];
    pixel = {up.blend[3 * index], up.blend[3 * index + 1], 1.0f / up.blend[3 * index + 2], 0.0f};
    for (int c = 0; c < channels; ++c) pixel.upstream += of(c) * up.color[index * channels + c];
    if (up.d_alpha != nullptr) alpha = up.d_alpha[index];
    if (up.d_depth != nullptr) {
      closest = up.ids[index * settings.n_track];
      depth = up.d_depth[index];
    }
  }
  __device__ float of(int c) const { return gradient != nullptr && c < channels ? gradient[c] : 0.0f; }
  __device__ float toward(const Scene& scene, const float* record, unsigned id) const {
    float sum = 0.0f;
    for (int c = 0; c < channels; ++c) sum += of(c) * channel<kChannels>(scene, record, id, c);
    return sum;
  }
};

// Adds the gradients of the background, which is blended as one more candidate, with exponent e0 and weight exp(e0 -
// M). Also converts `pixel.upstream` for the pairs: an upstream gradient of alpha acts like a channel in which spheres
// are 1 and the background 0. Writes `view_sums`. The whole block must call it.
template <int kChannels>
__device__ void add_background(const ExactView& view, const Scene& scene, PixelUpstream<kChannels>& up, bool on_film,
                               const CudaRows& to, float (&view_sums)[2]) {
  ExactPixel<float>& pixel = up.pixel;
  const float share = on_film ? exact_background(view, pixel.high, pixel.low) * pixel.inverse : 0.0f;
  pixel.upstream -= up.alpha * share;
  float toward_background = 0.0f;
  for (int c = 0; c < up.channels; ++c) toward_background += up.of(c) * scene.background[c];
  const float d_exponent = share * ((toward_background - pixel.upstream) - up.alpha);
  const float difference = (view.background_high - pixel.high) + (view.background_low - pixel.low);
  view_sums[0] = d_exponent * min(difference, 0.0f);
  view_sums[1] = d_exponent * (pixel.high + pixel.low);
  for (int begin = 0; to.wants_background() && begin < up.channels; begin += kWarpColumns) {
    float values[kWarpColumns];
#pragma unroll
    for (int i = 0; i < kWarpColumns; ++i) values[i] = up.of(begin + i) * share;
    sum_block(values, to.part(blockIdx.x) + kBackgroundColor + begin);
  }
}

// Data shared by the threads of a block, and a thread's pixel.
template <bool kOrthogonal, int kChannels>
struct Tile {
  const CudaExactView& view;
  const Scene& scene;
  const CudaRows& to;
  const TilePixel& place;
  const ExactRay<float>& ray;
  const PixelUpstream<kChannels>& up;
  SphereBatch& batch;
  SphereSums<kRowColumns<kChannels>>& sums;
  SharedArray<int, kWarp>& pixels;  // The number of pixels that took part, by slot.
  ExactPixelSums<float> of_pixel{};
};

// Differentiates sphere `i` of the batch in one pixel; returns whether it took part. From the second round on, only the
// part's share is needed.
template <bool kOrthogonal, int kChannels>
__device__ inline bool visit(Tile<kOrthogonal, kChannels>& tile, int i, bool is_first, RowPart& part) {
  const float* record = tile.batch.record(i);
  const unsigned id = tile.batch.id(i);
  const ExactOffset<float> offset = exact_offset<float, kOrthogonal>(record, tile.ray, tile.view);
  const ExactGeometry<float> g = exact_geometry<float, kOrthogonal>(record, tile.ray, tile.view, offset.square, true);
  if (!(g.closeness > 0.0f)) return false;
  const float d_depth = tile.up.closest == static_cast<int>(id) ? tile.up.depth : 0.0f;
  const float toward = is_first ? tile.up.toward(tile.scene, record, id) : 0.0f;
  ExactRow<float> row{};
  ExactPixelSums<float> of_pixel = tile.of_pixel;
  const float share = exact_add_pair<float, kOrthogonal, false>(record, tile.ray, offset, g, tile.up.pixel, true,
                                                                toward, d_depth, row, of_pixel);
  if (is_first) tile.of_pixel = of_pixel;
  part = {{row.x, row.y, row.depth, row.radius, row.opacity}, share};
  return true;
}

// Sums the gradients of the warp's pixels for up to 32 spheres of the batch, from number `begin` on.
template <bool kOrthogonal, int kChannels>
__device__ inline void visit_group(Tile<kOrthogonal, kChannels>& tile, int begin, int count, int first) {
  unsigned filled = 0;
  for (unsigned rest = tile.batch.reaching(begin, count, tile.place); rest != 0; rest &= rest - 1) {
    const int slot = __ffs(static_cast<int>(rest)) - 1, i = begin + slot;
    bool takes_part = static_cast<int>(tile.batch.ranks[i]) < tile.up.stop && tile.batch.reaches(i, tile.place) &&
                      exact_hit<float, kOrthogonal>(tile.batch.record(i), tile.ray, tile.view);
    if (__ballot_sync(kWholeWarp, takes_part) == 0) continue;
    RowPart part{};
    if (takes_part) takes_part = visit(tile, i, first == 0, part);
    const unsigned pixels = __ballot_sync(kWholeWarp, takes_part);
    if (pixels == 0) continue;
    tile.sums.put_part(slot, first, tile.to.width, part, tile.up);
    if (first == 0 && lane_index() == 0) atomicAdd(&tile.pixels[slot], __popc(pixels));
    filled |= 1u << slot;
  }
  tile.sums.close(filled);
}

// Adds the numbers of pixels that took part, for the spheres of the batch from number `begin` on.
template <bool kOrthogonal, int kChannels>
__device__ inline void add_pixels(Tile<kOrthogonal, kChannels>& tile, int begin) {
  const int slot = static_cast<int>(threadIdx.x);
  if (slot >= kWarp || tile.pixels[slot] == 0) return;
  atomicAdd(tile.to.touched + tile.batch.id(begin + slot), tile.pixels[slot]);
  tile.pixels[slot] = 0;
}

// Adds the sums of the block's pixels to the rows of up to 32 spheres of the batch, from number `begin` on. `pair` is
// the pair of the batch's first sphere.
template <bool kOrthogonal, int kChannels>
__device__ inline void add_group(Tile<kOrthogonal, kChannels>& tile, unsigned pair, int begin, int count) {
  constexpr int kColumns = kRowColumns<kChannels>;
  for (int first = 0; first == 0 || (kChannels != 3 && first < tile.to.width); first += kColumns) {
    visit_group(tile, begin, count, first);
    __syncthreads();
    if (first == 0) add_pixels(tile, begin);
    add_to_rows(tile.to, tile.sums, first, pair + static_cast<unsigned>(begin), ::min(kWarp, count - begin),
                [&](int slot) { return tile.batch.id(begin + slot); });
    __syncthreads();
  }
}

// Adds the pixels' sums for the camera and gamma.
template <bool kOrthogonal>
__device__ void add_view(const Camera& camera, const TilePixel& place, float x, float y, float spread,
                         const float (&background)[2], double* sums) {
  float values[4] = {x, y, 0.0f, 0.0f};
  if (!kOrthogonal) {
    values[2] = x * (static_cast<float>(place.x) - static_cast<float>(camera.centre_x));
    values[3] = y * (static_cast<float>(place.y) - static_cast<float>(camera.centre_y));
  }
  sum_block(values, sums + (kOrthogonal ? 16 : 12));
  float rest[4] = {background[0], background[1], spread, 0.0f};
  static_assert(kBackgroundMaximum == kBackgroundExponent + 1 && kPairExponent == kBackgroundExponent + 2 &&
                kUnused == kBackgroundExponent + 3);
  sum_block(rest, sums + kBackgroundExponent);
}

template <bool kOrthogonal, int kChannels>
__global__ void __launch_bounds__(kTilePixels, resident_blocks<kOrthogonal, kChannels>())
    pairs_kernel(const __grid_constant__ Settings settings, const __grid_constant__ Scene scene,
                 const __grid_constant__ TileLists lists, const DifferentiatedView* views) {
  __shared__ DifferentiatedView whole;
  __shared__ SphereBatch batch;
  __shared__ SphereSums<kRowColumns<kChannels>> sums;
  __shared__ SharedArray<int, kWarp> pixels;
  if (threadIdx.x < kWarp) pixels[static_cast<int>(threadIdx.x)] = 0;
  load_view(whole, views[view_of_block(lists)]);
  const Camera& camera = whole.camera;
  if ((camera.orthogonal != 0) != kOrthogonal) return;
  const CudaPrepared& prepared = whole.prepared;
  const CudaRows& to = whole.rows;
  const TilePixel place = tile_pixel(lists, camera.width, camera.height);
  const int64_t index = static_cast<int64_t>(place.y) * camera.width + place.x;
  const CudaExactView& view = prepared.view;
  const auto ray = exact_ray<float, kOrthogonal>(view, static_cast<float>(place.x), static_cast<float>(place.y));
  PixelUpstream<kChannels> up(settings, scene, whole.upstream, index, place.on_film);
  float background[2];
  add_background(view, scene, up, place.on_film, to, background);
  const TileList list(lists);
  Tile<kOrthogonal, kChannels> tile{view, scene, to, place, ray, up, batch, sums, pixels};
  for (int position = 0; position < list.length; position += kTilePixels) {
    const int count = batch.fetch(prepared, list, position);
    const unsigned pair = list.first + static_cast<unsigned>(position);
    for (int begin = 0; begin < count; begin += kWarp) add_group(tile, pair, begin, count);
    const bool more = count == 0 || static_cast<int>(batch.ranks[count - 1]) < up.stop;
    if (__syncthreads_and(!more)) break;
  }
  if (to.parts == nullptr) return;
  float ray_x, ray_y;
  exact_ray_gradient<float, kOrthogonal>(ray, view, tile.of_pixel, ray_x, ray_y);
  add_view<kOrthogonal>(camera, place, ray_x, ray_y, tile.of_pixel.spread, background, to.part(blockIdx.x));
}

using PairsKernel = void (*)(Settings, Scene, TileLists, const DifferentiatedView*);

PairsKernel choose(bool orthogonal, int channels) {
  if (orthogonal) return channels == 3 ? &pairs_kernel<true, 3> : &pairs_kernel<true, 0>;
  return channels == 3 ? &pairs_kernel<false, 3> : &pairs_kernel<false, 0>;
}

}  // namespace

void cuda_exact_pairs(const BackwardCall& call, cudaStream_t stream) {
  each_projection(call.cameras, [&](bool orthogonal) {
    launch(choose(orthogonal, call.scene.channels), tiles_of(call.pass.lists), kTilePixels, 0, stream, call.settings,
           call.scene, call.pass.lists, call.views);
  });
}

}  // namespace lumigrad::spheres
