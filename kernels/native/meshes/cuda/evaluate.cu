// Costs and distances on the device: sixteen lanes per row evaluate the obstacles of its environment.
#include "common/cuda/launch.h"
#include "meshes/cuda/engine.h"
#include "meshes/cuda/row_work.cuh"
#include "meshes/cuda/search.cuh"
#include "meshes/math/contact.h"
#include "meshes/math/grid.h"

namespace lumigrad::meshes {
namespace {

__device__ inline Vec<float> vector_of(const float* numbers) { return {numbers[0], numbers[1], numbers[2]}; }

__device__ inline bool is_inside(const Obstacle& mesh, const Searcher& by, Vec<float> p, bool on) {
  const bool by_rays = inside_by_rays(mesh.tree, by, p, on && mesh.sign == Sign::rays);
  const bool by_winding = inside_by_winding(mesh.tree, by, p, on && mesh.sign == Sign::winding);
  return by_rays || by_winding;
}

// The whole warp must call it; obstacles of rows that are on must be meshes. The search stops at the probe's limit,
// unless the point may be inside the mesh and its depth is needed: the closest surface may then be farther away.
template <Mode kMode>
__device__ inline Sight look_at_mesh(const Searcher& by, const Probe& probe, bool on) {
  const Obstacle& mesh = *probe.obstacle;
  const Tree& tree = mesh.tree;
  const Vec<float> p = probe.place;
  Sight sight = {{0.0f, {0.0f, 0.0f, 0.0f}}, -1, false};
  float within = fminf(probe.limit * probe.limit, kNoLimit);
  if (on) {
    const float bounds = squared_distance_to_box(p, vector_of(tree.low), vector_of(tree.high));
    const bool deep = kMode == Mode::exact && any_depth(mesh, bounds);
    if (!deep && bounds >= probe.limit * probe.limit && bounds > 0.0f) on = false;
    if (deep) within = kNoLimit;
  }
  sight.slot = closest_slot(tree, by, p, within, probe.hint, on);
  on = sight.slot >= 0;
  const bool inside = is_inside(mesh, by, p, on);
  if (!on) return sight;
  const Foothold at = foothold_of(tree, sight.slot, p);
  const float sign = sign_of(mesh, at.side, inside);
  if constexpr (kMode == Mode::exact) {
    sight.at = contact_of(at, sign, tree.extent);
    sight.found = sight.at.value < probe.limit;
  } else {
    sight.at = contact_of_curobo(at, sign, tree.extent);
    sight.found = at.length < probe.limit;
  }
  return sight;
}

template <Mode kMode>
__device__ inline Sight look_at_solid(const Probe& probe) {
  const Obstacle& obstacle = *probe.obstacle;
  Sight sight = {{0.0f, {0.0f, 0.0f, 0.0f}}, -1, false};
  if (obstacle.shape == Shape::grid && kMode != Mode::exact) {
    sight.found = distance_to_grid_curobo(obstacle, probe.place, sight.at);
    return sight;
  }
  sight.at = obstacle.shape == Shape::cuboid ? distance_to_cuboid(probe.place, vector_of(obstacle.half))
                                             : distance_to_grid(obstacle, probe.place);
  sight.found = sight.at.value < probe.limit;
  return sight;
}

// The whole warp must call it.
template <Mode kMode>
__device__ inline Sight look(const Searcher& by, const Probe& probe) {
  const bool mesh = probe.on && probe.obstacle->shape == Shape::mesh;
  const Sight sight = look_at_mesh<kMode>(by, probe, mesh);
  return probe.on && !mesh ? look_at_solid<kMode>(probe) : sight;
}

constexpr unsigned kRowsOfBlock = kSearchThreads / kWide;
// The least number of resident blocks, since searches are limited by memory latency.
constexpr unsigned kBlocks = 6;

// The sums of one row for the gradients of poses: one in each of the first kMomentDoubles lanes.
struct Moments {
  int lane;
  double sum = 0.0;

  static __device__ float component(Vec<float> v, int i) { return i == 0 ? v.x : i == 1 ? v.y : v.z; }
  __device__ void add(Vec<float> gradient, Vec<float> place) {
    const int outer = lane - 3;
    const double g = component(gradient, (outer + 3) % 3);
    sum += outer < 0 ? g : component(place, outer / 3) * g;
  }
  __device__ void store(const Outputs& out, int obstacle, int64_t row) {
    double* to = out.moments + int64_t{kMomentDoubles} * obstacle;
    if (lane < kMomentDoubles && sum != 0.0) atomicAdd(to + lane, out.upstream[row] * sum);
    sum = 0.0;
  }
};

// Searches for both rows of the warp until neither has anything left.
template <Mode kMode, bool kSweep>
__device__ inline void evaluate(const Call& call, const Searcher& by, RowWork<kMode, kSweep>& work, int64_t number) {
  const bool leader = by.lanes.lane == 0;
  const bool has_moments = kMode == Mode::exact && call.out.moments != nullptr;
  Moments moments{by.lanes.lane};
  __syncwarp();
  while (true) {
    const Probe probe = work.probe;
    if (!RowLanes::either(probe.on)) break;
    const Sight sight = look<kMode>(by, probe);
    __syncwarp();
    if (leader && probe.on) work.take(call, sight);
    __syncwarp();
    if (has_moments && probe.on && !call.settings.maximum) {
      if (work.counts) moments.add(work.gradient, probe.place);
      if (!work.probe.on || work.probe.obstacle != probe.obstacle) {
        moments.store(call.out, probe.obstacle->index, number);
      }
    }
  }
  const WinningSample& winner = work.row.winner;
  if (has_moments && winner.obstacle >= 0) {
    moments.add(winner.gradient, winner.place);
    moments.store(call.out, winner.obstacle, number);
  }
  __syncwarp();
}

template <Mode kMode, bool kSweep>
__global__ void __launch_bounds__(kSearchThreads, kBlocks) rows_kernel(const __grid_constant__ Call call) {
  __shared__ SharedArray<float, kMaxLevels * kSearchThreads> waiting;
  __shared__ SharedArray<RowWork<kMode, kSweep>, kRowsOfBlock> works;
  const int place = static_cast<int>(threadIdx.x) / kWide;
  const int64_t number = int64_t{blockIdx.x} * kRowsOfBlock + place;
  const Searcher by = {RowLanes::of_thread(), {waiting}};
  RowWork<kMode, kSweep>& work = works[place];
  const bool leader = by.lanes.lane == 0, there = number < call.rows;
  if (leader) {
    work.start(call, there ? number : 0);
    if (!there) work.probe.on = false;
  }
  evaluate(call, by, work, number);
  if (!leader || !there) return;
  if (work.row.own.on()) finish_row(work.row, call.settings);
  store_row(work.row, call.settings, call.out, number);
}

using RowsKernel = void (*)(Call);

template <Mode kMode>
RowsKernel kernel_of(bool sweep) {
  return sweep ? &rows_kernel<kMode, true> : &rows_kernel<kMode, false>;
}

RowsKernel kernel_of(const Settings& settings) {
  if (settings.mode == Mode::exact) return kernel_of<Mode::exact>(settings.sweep);
  if (settings.mode == Mode::curobo) return kernel_of<Mode::curobo>(settings.sweep);
  return &rows_kernel<Mode::curobo_field, false>;
}

template <class Use>
void each_mesh(const World& world, std::size_t obstacles, Use&& use) {
  for (std::size_t i = 0; i < obstacles; ++i) {
    if (world.obstacles[i].shape == Shape::mesh) use(*world.obstacles[i].tree.owner);
  }
}

}  // namespace

DeviceTimer cuda_evaluate(const World& world, const Spheres& spheres, const Settings& settings, const Outputs& outputs,
                          CudaWorkspace& workspace, cudaStream_t stream) {
  const auto environments = static_cast<std::size_t>(world.environments);
  const auto obstacles = static_cast<std::size_t>(world.begin[environments]);
  each_mesh(world, obstacles, [&](const CudaMesh& mesh) { mesh.begin_use(stream); });
  DeviceTimer timer(stream);
  DeviceBuffer<Obstacle> on_device(obstacles, stream);
  DeviceBuffer<int32_t> begin(environments + 1, stream);
  workspace.staging.copy(on_device.data(), world.obstacles, obstacles * sizeof(Obstacle), stream);
  workspace.staging.copy(begin.data(), world.begin, begin.bytes(), stream);
  const int64_t rows = int64_t{spheres.batches} * spheres.horizon * spheres.count;
  const Call call = {on_device.data(),     begin.data(),          rows, spheres, settings, outputs,
                     needs_costs(outputs), needs_closest(outputs)};
  launch(kernel_of(settings), blocks_for(static_cast<std::size_t>(rows), kRowsOfBlock), kSearchThreads, 0, stream,
         call);
  timer.mark("query");
  each_mesh(world, obstacles, [&](const CudaMesh& mesh) { mesh.end_use(stream); });
  return timer;
}

}  // namespace lumigrad::meshes
