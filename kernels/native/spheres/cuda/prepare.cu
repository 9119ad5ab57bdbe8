// Setup, sort by distance and binning into tiles on the device.
#include "spheres/cuda/prepare.cuh"

#include <optional>
#include <string>

#include "common/cuda/tile_lists.cuh"

namespace lumigrad::spheres {
namespace {

constexpr unsigned kThreads = 256;
// Up to this number of spheres, iterating over all in each tile is faster than listing them.
constexpr int kFewSpheres = 1024;

struct SetupTarget {
  float4* records;
  uint2* rectangles;
  float* area;
  unsigned* keys;
  TileCounts counts;
};

// The tiles that a sphere's candidate pixels lie in.
struct RectangleTiles {
  unsigned x, y, width, height;

  __device__ explicit RectangleTiles(uint2 r) : x((r.x & 0xFFFF) / kDeviceTile), y((r.y & 0xFFFF) / kDeviceTile) {
    width = ((r.x >> 16) + kDeviceTile - 1) / kDeviceTile - x;
    height = ((r.y >> 16) + kDeviceTile - 1) / kDeviceTile - y;
  }
  __device__ unsigned count() const { return width * height; }
  __device__ unsigned runs() const { return height; }
  __device__ TileRun run(unsigned number) const { return {y + number, x, width}; }
};

struct SphereReach {
  const uint2* rectangles;
  unsigned each;  // The number of spheres of a view.

  __device__ unsigned view(unsigned id) const { return id / each; }
  __device__ RectangleTiles operator()(unsigned id) const { return RectangleTiles(rectangles[id]); }
};

// Writes the results of the setup of a sphere in a view; returns the number of tiles that it overlaps.
template <bool kExact>
__device__ inline unsigned store_setup(const SetupTarget& to, int64_t item, const SetupResult& s) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    const float* r = s.record + 4 * quarter;
    to.records[4 * item + quarter] = make_float4(r[0], r[1], r[2], r[3]);
  }
  const PixelRectangle& c = s.candidates;
  const uint2 rectangle =
      s.visible ? make_uint2(c.x0 | static_cast<unsigned>(c.x1) << 16, c.y0 | static_cast<unsigned>(c.y1) << 16)
                : make_uint2(0, 0);
  to.rectangles[item] = rectangle;
  if constexpr (!kExact) to.area[item] = s.wide ? s.area : -s.area;
  to.keys[item] = s.visible ? __float_as_uint(s.near) : kBehindAll;
  return RectangleTiles(rectangle).count();
}

template <bool kExact, bool kOrthogonal>
__global__ void setup_kernel(const Camera* cameras, Settings settings, Scene scene, SetupTarget to) {
  __shared__ Camera camera;
  load_view(camera, cameras[blockIdx.y]);
  if ((camera.orthogonal != 0) != kOrthogonal) return;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int64_t item = static_cast<int64_t>(blockIdx.y) * scene.count + i;
  unsigned tiles = 0;
  if (i < scene.count) {
    const float* p = scene.positions + 3 * static_cast<int64_t>(i);
    const float radius = scene.radii[i], opacity = scene.opacities != nullptr ? scene.opacities[i] : 1.0f;
    SetupResult s;
    if constexpr (kExact) {
      s = exact_setup(camera, settings, kOrthogonal, p[0], p[1], p[2], radius, opacity);
    } else {
      s = compat_setup(camera, kOrthogonal, p[0], p[1], p[2], radius, opacity);
    }
    static_assert(static_cast<int>(exact_record::kColor) == static_cast<int>(compat_record::kColor));
    constexpr int kColor = static_cast<int>(exact_record::kColor);
    for (int c = 0; c < 3; ++c) {
      s.record[kColor + c] = scene.channels == 3 ? scene.colors[3 * static_cast<int64_t>(i) + c] : 0.0f;
    }
    tiles = store_setup<kExact>(to, item, s);
  }
  if (to.counts.wanted()) count_tiles(to.counts, i < scene.count, item, tiles);
}

__global__ void spheres_kernel(const unsigned* order, unsigned items, unsigned count, unsigned* spheres) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < items) spheres[i] = order[i] % count;
}

using SetupKernel = void (*)(const Camera*, Settings, Scene, SetupTarget);

SetupKernel choose_setup(bool exact, bool orthogonal) {
  if (exact) return orthogonal ? &setup_kernel<true, true> : &setup_kernel<true, false>;
  return orthogonal ? &setup_kernel<false, true> : &setup_kernel<false, false>;
}

// Items and tiles are numbered in 32 bits.
void check_size(std::size_t items, std::size_t tiles) {
  constexpr std::size_t kMost = 0x7FFFFFFF;
  if (items <= kMost && tiles <= kMost) return;
  throw DeviceMemoryError("views times spheres and tiles of all views must stay below 2^31, but there are " +
                          std::to_string(items) + " and " + std::to_string(tiles) + "; render fewer views at a time");
}

// Sorts the items by depth, and lists the items of each tile if tiles were counted.
void order(const Settings& settings, const Scene& scene, DeviceBuffer<unsigned>& keys,
           const std::optional<TileCountBuffers>& counts, CudaPass& pass, CudaWorkspace& workspace, DeviceTimer& timer,
           cudaStream_t stream) {
  if (counts) workspace.pairs.copy(counts->counts().pairs, 1, stream);
  sort_by_depth(keys, nullptr, scene.count, pass.lists, pass.tiles, stream);
  timer.mark("sort");
  const std::size_t pairs = counts ? workspace.pairs.wait() : 0, limit = pairs_within_room(workspace.pair_limit);
  if (counts && pairs <= limit) {
    const SphereReach reach{pass.rectangles.data(), static_cast<unsigned>(scene.count)};
    list_tiles<Entry::rank>(reach, counts->of_items(), pairs, pass.lists, pass.tiles, stream);
  } else if (settings.deterministic) {
    // Without lists there are no rows per pair, which deterministic sums need.
    throw DeviceMemoryError(std::to_string(pairs) + " pairs of tiles and spheres, each with a row of gradients, are" +
                            " more than the " + std::to_string(limit) + " that deterministic sums may have");
  } else {
    leave_unlisted(pass.lists, pass.tiles, stream);
  }
  if (pass.lists.views > 1) {
    const std::size_t items = keys.size();
    pass.spheres = DeviceBuffer<unsigned>(items, stream);
    launch(spheres_kernel, blocks_for(items, kThreads), kThreads, 0, stream, pass.tiles.order.data(),
           static_cast<unsigned>(items), static_cast<unsigned>(scene.count), pass.spheres.data());
  }
  timer.mark("bin");
}

}  // namespace

void cuda_prepare(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene, CudaPass& pass,
                  CudaWorkspace& workspace, DeviceTimer& timer, cudaStream_t stream) {
  const std::size_t views = cameras.size(), items = views * scene.count;
  pass.lists = tile_grid(static_cast<int>(views), cameras[0].width, cameras[0].height);
  check_size(items, views * pass.lists.tiles_x * pass.lists.tiles_y);
  pass.records = DeviceBuffer<float4>(4 * items, stream);
  pass.rectangles = DeviceBuffer<uint2>(items, stream);
  pass.area = DeviceBuffer<float>(settings.exact ? 0 : items, stream);
  DeviceBuffer<unsigned> keys(items, stream);
  const DeviceBuffer<Camera> on_device = uploaded(cameras, workspace, stream);
  std::optional<TileCountBuffers> counts;
  if (settings.deterministic || scene.count > kFewSpheres) counts.emplace(items, stream);
  const SetupTarget target{pass.records.data(), pass.rectangles.data(), pass.area.data(), keys.data(),
                           counts ? counts->counts() : TileCounts{}};
  const dim3 grid(blocks_for(static_cast<std::size_t>(scene.count), kThreads), static_cast<unsigned>(views));
  each_projection(cameras, [&](bool orthogonal) {
    launch(choose_setup(settings.exact, orthogonal), grid, kThreads, 0, stream, on_device.data(), settings, scene,
           target);
  });
  timer.mark("setup");
  order(settings, scene, keys, counts, pass, workspace, timer, stream);
}

std::vector<CudaPrepared> prepared_of(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                                      const CudaPass& pass) {
  std::vector<CudaPrepared> views;
  TileLists lists = pass.lists;
  if (pass.spheres.size() > 0) lists.order = pass.spheres.data();
  for (std::size_t v = 0; v < cameras.size(); ++v) {
    const std::size_t first = v * scene.count;
    const float* area = settings.exact ? nullptr : pass.area.data() + first;
    views.push_back({lists, pass.records.data() + 4 * first, pass.rectangles.data() + first, area,
                     CudaExactView(cameras[v], settings)});
  }
  return views;
}

}  // namespace lumigrad::spheres
