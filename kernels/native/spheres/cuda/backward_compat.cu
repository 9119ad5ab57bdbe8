// The backward pass of "compat" on the device: each pixel differentiates with respect to the spheres that it tracked. A
// tile goes through the spheres that any of its pixels tracked, in the order of its list.
#include "common/cuda/launch.h"
#include "spheres/cuda/rows.cuh"
#include "spheres/math/compat.h"

namespace lumigrad::spheres {
namespace {

// Up to this many tracked spheres are kept in registers.
constexpr int kFewTracked = 5;
constexpr unsigned kThreads = 256;

// The sphere in a pixel's slot, or -1.
__device__ inline int tracked_id(const float* info, int slot, bool on_film, int spheres) {
  if (!on_film) return -1;
  const int id = reinterpret_cast<const int*>(info)[3 + 2 * slot];
  return static_cast<unsigned>(id) < static_cast<unsigned>(spheres) ? id : -1;
}

// Counts the pixels in which each sphere was tracked, on which the weights of camera terms depend.
__global__ void __launch_bounds__(kTilePixels)
    count_kernel(Settings settings, Scene scene, TileLists lists, const DifferentiatedView* views) {
  const DifferentiatedView& view = views[view_of_block(lists)];
  const TilePixel place = tile_pixel(lists, view.camera.width, view.camera.height);
  const int64_t index = static_cast<int64_t>(place.y) * view.camera.width + place.x;
  const float* info = view.upstream.info + (place.on_film ? index : 0) * (3 + 2 * settings.n_track);
  int* touched = view.rows.touched;
  for (int t = 0; t < settings.n_track; ++t) {
    const int id = tracked_id(info, t, place.on_film, scene.count);
    if (__ballot_sync(kWholeWarp, id >= 0) == 0) break;
    const unsigned group = __match_any_sync(kWholeWarp, id);
    if (id >= 0 && (group & lanes_below()) == 0) atomicAdd(touched + id, __popc(group));
  }
}

// The rank of each sphere.
__global__ void ranks_kernel(const unsigned* order, unsigned count, unsigned* ranks) {
  const unsigned rank = blockIdx.x * blockDim.x + threadIdx.x;
  if (rank < count) ranks[order[rank]] = rank;
}

// The rank at a place in the list.
__device__ inline unsigned rank_at(const TileList& list, int place) {
  return list.entries != nullptr ? list.entries[place] : list.first + static_cast<unsigned>(place);
}

// The place of a rank in the ascending list, or -1 if it is not in the list.
__device__ inline int place_of(const TileList& list, unsigned rank) {
  int low = 0, high = list.length;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (rank_at(list, middle) < rank) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < list.length && rank_at(list, low) == rank ? low : -1;
}

// Places, in the tile's list, of the spheres that a pixel tracked. The first n of kRoom slots are used; few slots are
// kept in registers.
template <int kRoom>
struct Places {
  static constexpr int kUnroll = kRoom <= kFewTracked ? kRoom : 1;
  int places[kRoom];
  int used;

  __device__ Places(const float* info, int n, bool on_film, int spheres, const TileList& list, const unsigned* ranks)
      : used(n) {
    each([&](int& place, int t) {
      const int id = tracked_id(info, t, on_film && t < n, spheres);
      place = id >= 0 ? place_of(list, ranks[id]) : -1;
    });
  }
  __device__ bool has(int place) {
    bool found = false;
    each([&](int here, int) { found = found || here == place; });
    return found;
  }
  // Calls visit(place, slot) for each tracked sphere.
  template <class Visit>
  __device__ void each(const Visit& visit) {
#pragma unroll kUnroll
    for (int t = 0; t < kRoom; ++t) {
      if (kRoom > kFewTracked && t >= used) break;
      visit(places[t], t);
    }
  }
};

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

template <bool kOrthogonal>
__device__ void add_camera(const Camera& camera, const TilePixel& place, const float (&ray)[3], double* sums) {
  if constexpr (kOrthogonal) {
    float values[1] = {ray[0]};
    sum_block(values, sums + 12);
  } else {
    const auto x = static_cast<float>(place.x + camera.border_x), y = static_cast<float>(place.y + camera.border_y);
    float values[16] = {};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      values[i] = ray[i];
      values[3 + i] = ray[i] * x;
      values[6 + i] = ray[i] * y;
    }
    sum_block(values, sums + 3);
  }
}

// Data shared by the threads of a block, and a thread's pixel.
template <bool kOrthogonal, int kChannels, int kRoom>
struct Tile {
  const Scene& scene;
  const CudaPrepared& prepared;
  const CudaRows& to;
  const TileList& list;
  const CompatView& view;
  const CompatRay<float>& ray;
  const CompatPixel<float>& pixel;
  const PixelUpstream<kChannels>& up;
  Places<kRoom>& tracked;
  SphereSums<kRowColumns<kChannels>>& sums;
  float ray_sums[3] = {};

  __device__ int id(int place) const { return static_cast<int>(prepared.lists.order[rank_at(list, place)]); }
};

// Differentiates a sphere that the pixel tracked. From the second round on, only the part's share is needed.
template <bool kOrthogonal, int kChannels, int kRoom>
__device__ inline void visit(Tile<kOrthogonal, kChannels, kRoom>& tile, int id, bool is_first, RowPart& part) {
  const float* record = &tile.prepared.records[4 * static_cast<int64_t>(id)].x;
  const float area = tile.prepared.area[id];
  const auto toward = [&](float weight, float inverse_rest) {
    return is_first ? tile.up.toward(tile.scene, record, id, tile.pixel.denominator, weight, inverse_rest) : 0.0f;
  };
  const PairGradient<float> pair =
      compat_pair<float, kOrthogonal>(record, tile.ray, tile.view, tile.pixel, toward, area > 0.0f);
  part = {{pair.x, pair.y, pair.z, pair.radius, pair.opacity}, pair.share};
  const float weight = tile.to.parts != nullptr && is_first ? camera_weight(area, tile.to.touched[id]) : 0.0f;
  tile.ray_sums[0] += pair.ray_x * weight;
  tile.ray_sums[1] += pair.ray_y * weight;
  tile.ray_sums[2] += pair.ray_z * weight;
}

// Adds the sums of the block's pixels to the rows of up to 32 spheres, at the places begin + bit of the list.
template <bool kOrthogonal, int kChannels, int kRoom>
__device__ inline void add_group(Tile<kOrthogonal, kChannels, kRoom>& tile, int begin, unsigned bits) {
  constexpr int kColumns = kRowColumns<kChannels>;
  for (int first = 0; first == 0 || (kChannels != 3 && first < tile.to.width); first += kColumns) {
    unsigned filled = 0;
    for (unsigned rest = bits; rest != 0; rest &= rest - 1) {
      const int slot = __ffs(static_cast<int>(rest)) - 1;
      const bool takes_part = tile.tracked.has(begin + slot);
      if (__ballot_sync(kWholeWarp, takes_part) == 0) continue;
      RowPart part{};
      if (takes_part) visit(tile, tile.id(begin + slot), first == 0, part);
      tile.sums.put_part(slot, first, tile.to.width, part, tile.up);
      filled |= 1u << slot;
    }
    tile.sums.close(filled);
    __syncthreads();
    const unsigned pair = tile.list.first + static_cast<unsigned>(begin);
    add_to_rows(tile.to, tile.sums, first, pair, kWarp, [&](int slot) { return tile.id(begin + slot); });
    __syncthreads();
  }
}

// Adds the sums of the block's pixels to the rows of the spheres that they tracked.
template <bool kOrthogonal, int kChannels, int kRoom>
__device__ inline void add_tracked(Tile<kOrthogonal, kChannels, kRoom>& tile) {
  constexpr int kWindow = kTilePixels * kWarp;
  __shared__ SharedArray<unsigned, kTilePixels> tracked;  // The places of the window that a pixel tracked, as bits.
  for (int window = 0; window < tile.list.length; window += kWindow) {
    tracked[static_cast<int>(threadIdx.x)] = 0;
    __syncthreads();
    tile.tracked.each([&](int place, int) {
      const int i = place - window;
      if (i >= 0 && i < kWindow) atomicOr(&tracked[i / kWarp], 1u << i % kWarp);
    });
    __syncthreads();
    for (int word = 0; word < kTilePixels && window + word * kWarp < tile.list.length; ++word) {
      const unsigned bits = tracked[word];
      if (bits != 0) add_group(tile, window + word * kWarp, bits);
    }
    __syncthreads();
  }
}

template <bool kOrthogonal, int kChannels, int kRoom>
__global__ void __launch_bounds__(kTilePixels, 4)
    pairs_kernel(const __grid_constant__ Settings settings, const __grid_constant__ Scene scene,
                 const __grid_constant__ TileLists lists, const DifferentiatedView* views) {
  __shared__ DifferentiatedView whole;
  __shared__ SphereSums<kRowColumns<kChannels>> sums;
  load_view(whole, views[view_of_block(lists)]);
  const Camera& camera = whole.camera;
  if ((camera.orthogonal != 0) != kOrthogonal) return;
  const CudaPrepared& prepared = whole.prepared;
  const Upstream& upstream = whole.upstream;
  const CudaRows& to = whole.rows;
  const TilePixel place = tile_pixel(lists, camera.width, camera.height);
  const int64_t index = static_cast<int64_t>(place.y) * camera.width + place.x;
  const float* info = upstream.info + (place.on_film ? index : 0) * (3 + 2 * settings.n_track);
  const CompatView view = compat_view(camera, settings);
  const auto ray = compat_ray<float, kOrthogonal>(camera, static_cast<float>(place.x + camera.border_x),
                                                  static_cast<float>(place.y + camera.border_y));
  const PixelUpstream<kChannels> up(scene, upstream, index, place.on_film);
  const float denominator = place.on_film ? info[1] : 1.0f;
  const CompatPixel<float> pixel{place.on_film ? info[0] : 0.0f, denominator, 1.0f / max(denominator, kFeps),
                                 1.0f / max(denominator * denominator, kFeps)};
  const TileList list(lists);
  Places<kRoom> tracked(info, settings.n_track, place.on_film, scene.count, list, whole.ranks);
  Tile<kOrthogonal, kChannels, kRoom> tile{scene, prepared, to, list, view, ray, pixel, up, tracked, sums};
  add_tracked(tile);
  if (to.parts != nullptr) add_camera<kOrthogonal>(camera, place, tile.ray_sums, to.part(blockIdx.x));
}

using PairsKernel = void (*)(Settings, Scene, TileLists, const DifferentiatedView*);

template <int kRoom>
PairsKernel choose(bool orthogonal, int channels) {
  if (orthogonal) return channels == 3 ? &pairs_kernel<true, 3, kRoom> : &pairs_kernel<true, 0, kRoom>;
  return channels == 3 ? &pairs_kernel<false, 3, kRoom> : &pairs_kernel<false, 0, kRoom>;
}

}  // namespace

void cuda_ranks(const DeviceBuffer<unsigned>& order, unsigned* ranks, cudaStream_t stream) {
  launch(ranks_kernel, blocks_for(order.size(), kThreads), kThreads, 0, stream, order.data(),
         static_cast<unsigned>(order.size()), ranks);
}

void cuda_compat_pairs(const BackwardCall& call, cudaStream_t stream) {
  if (call.scene.count == 0) return;
  const TileLists& lists = call.pass.lists;
  launch(count_kernel, tiles_of(lists), kTilePixels, 0, stream, call.settings, call.scene, lists, call.views);
  const bool few = call.settings.n_track <= kFewTracked;
  each_projection(call.cameras, [&](bool orthogonal) {
    const PairsKernel kernel =
        few ? choose<kFewTracked>(orthogonal, call.scene.channels) : choose<kMaxTrack>(orthogonal, call.scene.channels);
    launch(kernel, tiles_of(lists), kTilePixels, 0, stream, call.settings, call.scene, lists, call.views);
  });
}

}  // namespace lumigrad::spheres
