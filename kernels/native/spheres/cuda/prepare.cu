// Setup, sort by distance and binning into tiles on the device.
#include "spheres/cuda/prepare.cuh"

#include <string>

#include "common/cuda/tile_lists.cuh"

namespace lumigrad::spheres {
namespace {

constexpr unsigned kThreads = 256;
// Up to this number of spheres, iterating over all of them in each tile is faster than listing them.
constexpr int kFewSpheres = 1024;

struct SetupTarget {
  float4* records;
  uint2* rectangles;
  float* area;
  unsigned* keys;
};

template <bool kExact, bool kOrthogonal>
__global__ void setup_kernel(Camera camera, Settings settings, Scene scene, SetupTarget to) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= scene.count) return;
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
  for (int quarter = 0; quarter < 4; ++quarter) {
    const float* r = s.record + 4 * quarter;
    to.records[4 * static_cast<int64_t>(i) + quarter] = make_float4(r[0], r[1], r[2], r[3]);
  }
  const PixelRectangle& c = s.candidates;
  to.rectangles[i] =
      s.visible ? make_uint2(c.x0 | static_cast<unsigned>(c.x1) << 16, c.y0 | static_cast<unsigned>(c.y1) << 16)
                : make_uint2(0, 0);
  if constexpr (!kExact) to.area[i] = s.wide ? s.area : -s.area;
  to.keys[i] = s.visible ? __float_as_uint(s.near) : kBehindAll;
}

// The tiles that a sphere's candidate pixels lie in.
struct RectangleTiles {
  unsigned x, y, width, height;

  __device__ unsigned count() const { return width * height; }
  __device__ uint2 tile(unsigned place) const { return make_uint2(x + place % width, y + place / width); }
};

struct SphereReach {
  const uint2* rectangles;

  __device__ RectangleTiles operator()(unsigned id) const {
    const uint2 r = rectangles[id];
    const unsigned x0 = (r.x & 0xFFFF) / kDeviceTile, x1 = ((r.x >> 16) + kDeviceTile - 1) / kDeviceTile;
    const unsigned y0 = (r.y & 0xFFFF) / kDeviceTile, y1 = ((r.y >> 16) + kDeviceTile - 1) / kDeviceTile;
    return {x0, y0, x1 - x0, y1 - y0};
  }
};

using SetupKernel = void (*)(Camera, Settings, Scene, SetupTarget);

SetupKernel choose_setup(bool exact, bool orthogonal) {
  if (exact) return orthogonal ? &setup_kernel<true, true> : &setup_kernel<true, false>;
  return orthogonal ? &setup_kernel<false, true> : &setup_kernel<false, false>;
}

}  // namespace

void cuda_prepare(const Camera& camera, const Settings& settings, const Scene& scene, CudaPass& pass,
                  CudaWorkspace& workspace, DeviceTimer& timer, cudaStream_t stream) {
  const auto n = static_cast<std::size_t>(scene.count);
  pass.lists = tile_grid(1, camera.width, camera.height);
  pass.records = DeviceBuffer<float4>(4 * n, stream);
  pass.rectangles = DeviceBuffer<uint2>(n, stream);
  pass.area = DeviceBuffer<float>(settings.exact ? 0 : n, stream);
  DeviceBuffer<unsigned> keys(n, stream);
  const SetupTarget target{pass.records.data(), pass.rectangles.data(), pass.area.data(), keys.data()};
  launch(choose_setup(settings.exact, camera.orthogonal), blocks_for(n, kThreads), kThreads, 0, stream, camera,
         settings, scene, target);
  timer.mark("setup");
  const bool listed = settings.deterministic || scene.count > kFewSpheres;
  const SphereReach reach{pass.rectangles.data()};
  DeviceBuffer<unsigned> counts;
  if (listed) counts = count_tiles(reach, keys, workspace.pairs, stream);
  sort_by_depth(keys, scene.count, pass.lists, pass.tiles, stream);
  timer.mark("sort");
  const std::size_t pairs = listed ? workspace.pairs.wait() : 0;
  if (listed && pairs <= workspace.pair_limit) {
    list_tiles<Entry::rank>(reach, counts, pairs, pass.lists, pass.tiles, stream);
  } else if (settings.deterministic) {
    // Without lists there is no row for each pair.
    throw DeviceMemoryError(std::to_string(pairs) + " pairs of tiles and spheres, each with a row of gradients, are" +
                            " more than the " + std::to_string(workspace.pair_limit) +
                            " that deterministic sums may have");
  }
  timer.mark("bin");
}

}  // namespace lumigrad::spheres
