// Finds the Gaussians that reach pixels and computes their records from the scene on the device. A thread for each view
// and Gaussian projects it and evaluates its colours.
#include <type_traits>

#include "common/cuda/launch.h"
#include "gaussians/cuda/colors/evaluate.cuh"
#include "gaussians/cuda/projected.cuh"
#include "gaussians/cuda/reach.cuh"

namespace lumigrad::gaussians {
namespace {

// Writes a record without its colours, which are written later.
__device__ inline void write_record(const CudaRecords& to, int64_t place, const Projected<float>& g, unsigned columns,
                                    unsigned rows) {
  float4* record = to.records + kRecordQuarters * place;
  record[0] = make_float4(g.x, g.y, g.ux, g.uy);
  record[1] = make_float4(g.vy, g.log2_opacity, __uint_as_float(columns), __uint_as_float(rows));
  if (to.stride == 0) record[2] = record[3] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float* features = to.features_of(place);
  float* next = features + to.features.colors;
  if (to.features.depth) *next++ = g.depth;
  if (to.features.inverse_depth) *next++ = 1.0f / g.depth;
  while (next < features + to.stride) *next++ = 0.0f;
}

// Facts about a projected Gaussian that are not in its record.
struct Reached {
  bool pixels = false, seen = false;
  unsigned tiles = 0;  // Number of tiles, if they are counted.
};

// Writes the pass's outputs for a Gaussian, except the number of its tiles.
__device__ inline Reached store_projected(const ProjectTarget& to, int64_t item, int64_t place,
                                          const Projected<float>& g) {
  const DrawnRange range(g);
  if (to.finds_places()) {
    write_outputs(to.outputs, item, g);
  } else {
    write_record(to.records, place, g, range.columns, range.rows);
    to.keys[place] = sortable(g.depth);
    to.records.places.items[place] = static_cast<unsigned>(item);
  }
  if (!range.reaches || !to.counts.wanted()) return {range.reaches, g.visible, 0};
  const Ellipse<float> ellipse = {g.x, g.y, g.ux, g.uy, g.vy, g.log2_opacity};
  return {true, true, EllipseTiles(ellipse, range_of(range.columns, range.rows), to.limits).count()};
}

// Writes the number of tiles, or records the place. The whole warp must call it.
__device__ inline void store_reach(const CudaCall& call, const ProjectTarget& to, const GaussianPlace& g,
                                   const Placed& placed, const Reached& reached) {
  if (to.finds_places()) to.records.places.note(call, g, reached.pixels, reached.seen, to.drawn);
  if (to.counts.wanted()) count_tiles(to.counts, placed.drawn, placed.place, reached.tiles);
}

// The place of the calling thread's Gaussian. In the second pass only Gaussians with places are projected.
__device__ inline Placed placed_of(const CudaCall& call, const ProjectTarget& to, const GaussianPlace& g) {
  if (to.finds_places()) return {g.number >= 0, false, 0};
  return to.records.places.find(call, g.outer, g);
}

inline constexpr int kWithoutColors = -1;

// `kDegree`: also writes colours, from spherical harmonics that can be staged.
template <Lens kLens, bool kCovariance, int kDegree = kWithoutColors>
__global__ void __launch_bounds__(kGaussianThreads)
    project_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ ProjectTarget to) {
  const GaussianPlace place = gaussian_place(call);
  const int view = place.outer;
  if (call.lenses[view] != static_cast<int32_t>(kLens)) return;
  const int64_t count = call.scene.count, item = view * count + place.number;
  const Placed placed = placed_of(call, to, place);
  Reached reached;
  if (placed.drawn) {
    const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
    const auto gaussian = gaussian_of<kCovariance>(call.scene, call.view[view].scene * count + place.number);
    const Projected<float> g = project<kLens, kCovariance>(call.view[view], pose, call.settings, gaussian);
    reached = store_projected(to, item, placed.place, g);
  }
  store_reach(call, to, place, placed, reached);
  if constexpr (kDegree != kWithoutColors) write_colors<kDegree>(call, to.records, place, placed);
}

// Projects for sensors, in doubles.
template <class SensorKind>
__global__ void __launch_bounds__(kGaussianThreads)
    project_sensor_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ ProjectTarget to,
                          SensorLens lens) {
  const GaussianPlace place = gaussian_place(call);
  const int view = place.outer;
  if (call.scene.sensors[view].lens != lens) return;
  const int64_t count = call.scene.count, item = view * count + place.number;
  const Placed placed = placed_of(call, to, place);
  Reached reached;
  if (placed.drawn) {
    const auto gaussian = gaussian64_of(call.scene, call.view[view].scene * count + place.number);
    const SensorPlace at{call.view[view], call.scene.sensors[view], call.scene.slice_poses[place.slice], call.settings};
    SensorFootprint<double> f;
    Projected<float> g;
    g.visible = sensor_footprint<SensorKind>(at, gaussian, f);
    const SensorFootprint<float> film = {
        static_cast<float>(f.x), static_cast<float>(f.y), static_cast<float>(f.depth), static_cast<float>(f.a),
        static_cast<float>(f.b), static_cast<float>(f.c), static_cast<float>(f.sharp), static_cast<float>(f.schur)};
    constexpr bool kFilm = !std::is_same_v<SensorKind, SpinningLidar>;
    finish_sensor<kFilm>(at.view, at.settings, film, static_cast<float>(gaussian.opacity), g);
    reached = store_projected(to, item, placed.place, g);
  }
  store_reach(call, to, place, placed, reached);
}

// Kernels for each degree exist only for the usual scenes and views, not for every lens.
auto coloring_kernel(int degree) {
  auto kernel = &project_kernel<Lens::pinhole, false>;
  with_staged_degree(degree,
                     [&](auto constant) { kernel = &project_kernel<Lens::pinhole, false, decltype(constant)::value>; });
  return kernel;
}

}  // namespace

bool cuda_project(const CudaCallData& data, const ProjectTarget& to, cudaStream_t stream) {
  const CudaCall& call = data.call();
  const auto blocks = static_cast<unsigned>(call.views * call.blocks);
  if (to.drawn == nullptr && to.records.features.colors > 0 && call.scene.sh != nullptr &&
      call.scene.covariances == nullptr && data.has_only(Lens::pinhole) && can_stage(call.scene, nullptr)) {
    launch(coloring_kernel(call.settings.sh_degree), blocks, kGaussianThreads, 0, stream, call, to);
    return true;
  }
  each_sensor_lens(data, [&](auto lens, SensorLens number) {
    launch(project_sensor_kernel<decltype(lens)>, blocks, kGaussianThreads, 0, stream, call, to, number);
  });
  each_lens(data, [&](auto lens, auto covariance) {
    launch(project_kernel<decltype(lens)::value, decltype(covariance)::value>, blocks, kGaussianThreads, 0, stream,
           call, to);
  });
  return false;
}

}  // namespace lumigrad::gaussians
