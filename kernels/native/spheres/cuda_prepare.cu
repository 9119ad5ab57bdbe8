// Setup, sort by distance and binning into tiles on the device.
#include "spheres/cuda_prepare.h"

#include <algorithm>
#include <bit>

#include "common/device_primitives.h"
#include "common/device_sort.h"
#include "common/launch.h"

namespace lumigrad::spheres {
namespace {

constexpr unsigned kThreads = 256;
// Behind all numbers: the key of a dropped sphere, and of room for pairs that is not used.
constexpr unsigned kLast = 0xFFFFFFFFu;
// Up to so many spheres a tile goes through all of them sooner than they could be listed.
constexpr int kFewSpheres = 1024;

struct SetupTarget {
  float4* records;
  uint2* rectangles;
  float* area;
  unsigned* keys;
  unsigned* ids;
  CudaCounters* counters;
};

template <bool kExact, bool kOrthogonal>
__global__ void setup_kernel(Camera camera, Settings settings, Scene scene, SetupTarget to) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  bool visible = false;
  if (i < scene.count) {
    const float* p = scene.positions + 3 * static_cast<int64_t>(i);
    const float radius = scene.radii[i], opacity = scene.opacities != nullptr ? scene.opacities[i] : 1.0f;
    SetupResult s;
    if constexpr (kExact) {
      s = exact_setup(camera, settings, kOrthogonal, p[0], p[1], p[2], radius, opacity);
    } else {
      s = compat_setup(camera, kOrthogonal, p[0], p[1], p[2], radius, opacity);
    }
    visible = s.visible;
    static_assert(static_cast<int>(exact_record::kColor) == static_cast<int>(compat_record::kColor));
    constexpr int kColor = static_cast<int>(exact_record::kColor);
    for (int c = 0; c < 3; ++c) {
      s.record[kColor + c] = scene.channels == 3 ? scene.colors[3 * static_cast<int64_t>(i) + c] : 0.0f;
    }
    for (int quarter = 0; quarter < 4; ++quarter) {
      const float* r = s.record + 4 * quarter;
      to.records[4 * static_cast<int64_t>(i) + quarter] = make_float4(r[0], r[1], r[2], r[3]);
    }
    const Rectangle& c = s.candidates;
    to.rectangles[i] =
        visible ? make_uint2(c.x0 | static_cast<unsigned>(c.x1) << 16, c.y0 | static_cast<unsigned>(c.y1) << 16)
                : make_uint2(0, 0);
    to.area[i] = s.wide ? s.area : -s.area;
    to.keys[i] = visible ? __float_as_uint(s.near) : kLast;
    to.ids[i] = static_cast<unsigned>(i);
  }
  const int count = __syncthreads_count(visible);
  if (threadIdx.x == 0 && count > 0) atomicAdd(&to.counters->visible, static_cast<unsigned>(count));
}

struct TileRange {
  unsigned x, y, width, height;
};

__device__ inline TileRange tile_range(uint2 r) {
  const unsigned x0 = (r.x & 0xFFFF) / kCudaTile, x1 = ((r.x >> 16) + kCudaTile - 1) / kCudaTile;
  const unsigned y0 = (r.y & 0xFFFF) / kCudaTile, y1 = ((r.y >> 16) + kCudaTile - 1) / kCudaTile;
  return {x0, y0, x1 - x0, y1 - y0};
}

// How many tiles each sphere reaches, by rank, and in all. The sum has 64 bits; that of 32 may overflow, but then it is
// larger than any capacity and nobody looks.
__global__ void count_kernel(int spheres, CudaPrepared prepared, unsigned* counts, CudaCounters* counters) {
  __shared__ SharedArray<unsigned long long, kThreads / kWarp> partial;
  const int rank = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  unsigned count = 0;
  if (rank < spheres) {
    const TileRange t = tile_range(prepared.rectangles[prepared.order[rank]]);
    count = t.width * t.height;
    counts[rank] = count;
  }
  const auto of_warp = warp_sum(static_cast<unsigned long long>(count));
  if (lane_index() == 0) partial[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long total = 0;
    for (int w = 0; w < static_cast<int>(kThreads) / kWarp; ++w) total += partial[w];
    if (total > 0) atomicAdd(&counters->pairs, total);
  }
}

// The last rank in [low, high] whose pairs start at or before `pair`.
__device__ inline int rank_of(const unsigned* starts, unsigned pair, int low, int high) {
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (starts[middle] <= pair) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// A thread per pair, so that a sphere that covers the film costs no more than many small ones: it finds its sphere
// between those of the block's first and last pair.
__global__ void list_kernel(CudaPrepared prepared, const unsigned* starts, unsigned* tiles, unsigned* ranks) {
  __shared__ SharedArray<int, 2> ends;
  const unsigned long long pairs = prepared.counters->pairs;
  if (pairs > prepared.capacity) return;
  const unsigned first = blockIdx.x * blockDim.x, pair = first + threadIdx.x;
  const int spheres = static_cast<int>(prepared.counters->visible);
  if (threadIdx.x < 2 && first < pairs) {
    const auto last = static_cast<unsigned>(pairs - 1);
    const unsigned edge = threadIdx.x == 0 ? first : ::min(first + blockDim.x - 1, last);
    ends[threadIdx.x] = rank_of(starts, edge, 0, spheres - 1);
  }
  __syncthreads();
  if (pair >= prepared.capacity) return;
  if (pair >= pairs) {
    tiles[pair] = kLast;
    ranks[pair] = 0;
    return;
  }
  const int rank = rank_of(starts, pair, ends[0], ends[1]);
  const TileRange t = tile_range(prepared.rectangles[prepared.order[rank]]);
  const unsigned place = pair - starts[rank];
  tiles[pair] = (t.y + place / t.width) * prepared.tiles_x + t.x + place % t.width;
  ranks[pair] = static_cast<unsigned>(rank);
}

// Where each tile's pairs start in the sorted list.
__global__ void starts_kernel(const unsigned* tiles, unsigned pairs, int count, unsigned* starts) {
  const int tile = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (tile >= count) return;
  unsigned low = 0, high = pairs;
  while (low < high) {
    const unsigned middle = low + (high - low) / 2;
    if (tiles[middle] < static_cast<unsigned>(tile)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  starts[tile] = low;
}

using SetupKernel = void (*)(Camera, Settings, Scene, SetupTarget);

SetupKernel choose_setup(bool exact, bool orthogonal) {
  if (exact) return orthogonal ? &setup_kernel<true, true> : &setup_kernel<true, false>;
  return orthogonal ? &setup_kernel<false, true> : &setup_kernel<false, false>;
}

// Lists the tiles' spheres, if there is room for them.
void bin(int spheres, CudaPrepared& prepared, CudaWorkspace& workspace, cudaStream_t stream, CudaBuffers& buffers) {
  const auto n = static_cast<std::size_t>(spheres);
  const auto tiles = static_cast<std::size_t>(prepared.tiles_x) * prepared.tiles_y;
  const std::size_t room = workspace.pair_capacity(n, tiles);
  DeviceBuffer<unsigned> counts(n, stream);
  CudaCounters* counters = buffers.counters.data();
  launch(count_kernel, blocks_for(n, kThreads), kThreads, 0, stream, spheres, prepared, counts.data(), counters);
  check(cudaMemcpyAsync(workspace.pairs(), &counters->pairs, sizeof(counters->pairs), cudaMemcpyDeviceToHost, stream),
        "copying a count");
  if (room == 0) return;
  DeviceBuffer<unsigned> keys(room, stream), keys_sorted(room, stream), ranks(room, stream);
  prepared.capacity = static_cast<unsigned>(room);
  exclusive_sum(counts.data(), counts.data(), spheres, stream);
  launch(list_kernel, blocks_for(room, kThreads), kThreads, 0, stream, prepared, counts.data(), keys.data(),
         ranks.data());
  buffers.ranks = DeviceBuffer<unsigned>(room, stream);
  buffers.tile_starts = DeviceBuffer<unsigned>(tiles + 1, stream);
  // A bit more than the tiles' numbers need, so that room that is not used sorts behind them.
  const int bits = std::bit_width(tiles);
  sort_pairs(keys.data(), keys_sorted.data(), ranks.data(), buffers.ranks.data(), static_cast<int>(room), 0, bits,
             stream);
  launch(starts_kernel, blocks_for(tiles + 1, kThreads), kThreads, 0, stream, keys_sorted.data(), prepared.capacity,
         static_cast<int>(tiles + 1), buffers.tile_starts.data());
  prepared.tile_starts = buffers.tile_starts.data();
  prepared.ranks = buffers.ranks.data();
}

}  // namespace

CudaPrepared cuda_prepare(const Camera& camera, const Settings& settings, const Scene& scene, CudaWorkspace& workspace,
                          cudaStream_t stream, CudaBuffers& buffers, DeviceTimer& timer) {
  const auto n = static_cast<std::size_t>(scene.count);
  buffers.records = DeviceBuffer<float4>(4 * n, stream);
  buffers.rectangles = DeviceBuffer<uint2>(n, stream);
  buffers.area = DeviceBuffer<float>(n, stream);
  buffers.order = DeviceBuffer<unsigned>(n, stream);
  buffers.counters = DeviceBuffer<CudaCounters>(1, stream);
  DeviceBuffer<unsigned> keys(n, stream), keys_sorted(n, stream), ids(n, stream);
  check(cudaMemsetAsync(buffers.counters.data(), 0, sizeof(CudaCounters), stream), "clearing counters");
  const SetupTarget target{
      buffers.records.data(), buffers.rectangles.data(), buffers.area.data(), keys.data(), ids.data(),
      buffers.counters.data()};
  launch(choose_setup(settings.exact, camera.orthogonal), blocks_for(n, kThreads), kThreads, 0, stream, camera,
         settings, scene, target);
  timer.mark("setup");
  sort_pairs(keys.data(), keys_sorted.data(), ids.data(), buffers.order.data(), scene.count, 0, 32, stream);
  timer.mark("sort");

  CudaPrepared prepared{};
  prepared.tiles_x = (camera.width + kCudaTile - 1) / kCudaTile;
  prepared.tiles_y = (camera.height + kCudaTile - 1) / kCudaTile;
  prepared.records = buffers.records.data();
  prepared.rectangles = buffers.rectangles.data();
  prepared.area = buffers.area.data();
  prepared.order = buffers.order.data();
  prepared.counters = buffers.counters.data();
  if (scene.count > kFewSpheres) bin(scene.count, prepared, workspace, stream, buffers);
  timer.mark("bin");
  return prepared;
}

}  // namespace lumigrad::spheres
