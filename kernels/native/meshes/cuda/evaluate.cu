// Costs and distances on the device: sixteen lanes per row evaluate the obstacles of its environment.
#include "common/cuda/launch.h"
#include "meshes/cuda/engine.h"
#include "meshes/cuda/search.cuh"
#include "meshes/math/distance.h"
#include "meshes/math/query.h"
#include "meshes/math/sweep.h"

namespace lumigrad::meshes {
namespace {

__device__ inline Vec<float> vector_of(const float* numbers) { return {numbers[0], numbers[1], numbers[2]}; }

__device__ inline bool is_inside(const Obstacle& mesh, const RowLanes& lanes, Vec<float> p) {
  if (mesh.sign == Sign::rays) return inside_by_rays(mesh.tree, lanes, p);
  return mesh.sign == Sign::winding && inside_by_winding(mesh.tree, lanes, p);
}

// The search stops at `limit`, unless the point may be inside the mesh and its depth is needed: the closest surface may
// then be farther away.
template <Mode kMode>
__device__ inline Sight look_at_mesh(const Obstacle& mesh, const RowLanes& lanes, Vec<float> p, float limit, int hint) {
  const Tree& tree = mesh.tree;
  const float bounds = squared_distance_to_box(p, vector_of(tree.low), vector_of(tree.high));
  Sight sight = {{0.0f, {0.0f, 0.0f, 0.0f}}, -1, false};
  const bool deep = kMode == Mode::exact && any_depth(mesh, bounds);
  if (!deep && bounds >= limit * limit && bounds > 0.0f) return sight;
  const float within = deep ? kNoLimit : fminf(limit * limit, kNoLimit);
  sight.slot = closest_slot(tree, lanes, p, within, hint);
  if (sight.slot < 0) return sight;
  const Foothold at = foothold_of(tree, sight.slot, p);
  const float sign = sign_of(mesh, at.side, is_inside(mesh, lanes, p));
  if constexpr (kMode == Mode::exact) {
    sight.at = contact_of(at, sign, tree.extent);
    sight.found = sight.at.value < limit;
  } else {
    sight.at = contact_of_curobo(at, sign, tree.extent);
    sight.found = at.length < limit;
  }
  return sight;
}

// Searches an obstacle from `p`, in its frame, up to the distance `limit`; `hint` is a slot that was found nearby, or
// -1. Not inlined, since a row calls it from several places.
template <Mode kMode>
__device__ __noinline__ Sight look(const Obstacle& obstacle, RowLanes lanes, Vec<float> p, float limit, int hint) {
  if (obstacle.shape == Shape::mesh) return look_at_mesh<kMode>(obstacle, lanes, p, limit, hint);
  Sight sight = {{0.0f, {0.0f, 0.0f, 0.0f}}, -1, false};
  if (obstacle.shape == Shape::grid && kMode != Mode::exact) {
    sight.found = distance_to_grid_curobo(obstacle, p, sight.at);
    return sight;
  }
  sight.at =
      obstacle.shape == Shape::cuboid ? distance_to_cuboid(p, vector_of(obstacle.half)) : distance_to_grid(obstacle, p);
  sight.found = sight.at.value < limit;
  return sight;
}

constexpr unsigned kThreads = 128;
constexpr unsigned kRowsOfBlock = kThreads / kWide;
// Least number of resident blocks: a search is bound by memory latency, so that occupancy is worth spilled registers.
constexpr unsigned kBlocks = 5;

// Passed to kernels by value; pointers are to the device's memory.
struct Call {
  const Obstacle* obstacles;
  const int32_t* begin;
  int64_t rows;
  Spheres spheres;
  Settings settings;
  Outputs out;
  bool costs, closest;  // Whether each is requested.
};

// The sums of one row for the gradients of poses: each of the first kMomentDoubles lanes has one.
struct Moments {
  const RowLanes& lanes;
  double sum = 0.0;

  static __device__ float component(Vec<float> v, int i) { return i == 0 ? v.x : i == 1 ? v.y : v.z; }
  __device__ void add(Vec<float> gradient, Vec<float> place) {
    const int outer = lanes.lane - 3;
    const double g = component(gradient, (outer + 3) % 3);
    sum += outer < 0 ? g : component(place, outer / 3) * g;
  }
  __device__ void store(double* to, double scale) {
    if (lanes.lane < kMomentDoubles && sum != 0.0) atomicAdd(to + lanes.lane, scale * sum);
    sum = 0.0;
  }
};

template <Mode kMode, bool kSweep>
class Row {
 public:
  __device__ Row(const Call& call, const RowLanes& lanes, int64_t number)
      : call_(call),
        lanes_(lanes),
        number_(number),
        row_(row_of(call.spheres, call.settings, number)),
        moments_{lanes} {}

  __device__ void evaluate(int environment) {
    const Obstacle* begin = call_.obstacles + call_.begin[environment];
    const Obstacle* end = call_.obstacles + call_.begin[environment + 1];
    if constexpr (kMode == Mode::curobo_field) {
      row_.field = field_floor(row_.own.radius, call_.settings.reach, begin, end);
    }
    for (const Obstacle* o = begin; o != end; ++o) see(*o);
    if (has_moments() && row_.winner.obstacle >= 0) {
      moments_.add(row_.winner.gradient, row_.winner.place);
      store_moments(row_.winner.obstacle);
    }
  }

  __device__ void store() {
    if (on()) finish_row(row_, call_.settings);
    if (lanes_.lane == 0) store_row(row_, call_.settings, call_.out, number_);
  }

  __device__ bool on() const { return row_.own.on(); }

 private:
  __device__ bool has_moments() const { return kMode == Mode::exact && call_.out.moments != nullptr; }

  __device__ void store_moments(int obstacle) {
    moments_.store(call_.out.moments + int64_t{kMomentDoubles} * obstacle, call_.out.upstream[number_]);
  }

  __device__ void add(const Obstacle& o, const Sight& sight, Vec<float> place, float fraction, Toward toward) {
    Vec<float> gradient;
    const bool counts = add_sample(row_, call_.settings, o, sight, place, fraction, toward, gradient);
    if (counts && has_moments() && !call_.settings.maximum) moments_.add(gradient, place);
  }

  __device__ void see(const Obstacle& o) {
    const Vec<float> place = to_object(o, row_.own.centre);
    const float reach = reach_of_centre(row_, call_.settings, call_.costs, call_.closest);
    const Sight sight = look<kMode>(o, lanes_, place, reach, -1);
    if constexpr (kMode == Mode::curobo_field) {
      keep_field(row_, o, sight, call_.settings.reach);
    }
    if (call_.closest) keep_closest(row_, o, sight, place);
    if (kMode == Mode::curobo_field || !call_.costs) return;
    add(o, sight, place, 0.0f, Toward::none);
    if constexpr (kSweep) {
      sweep(o, sight, reach, Toward::before);
      sweep(o, sight, reach, Toward::after);
    }
    if (has_moments() && !call_.settings.maximum) store_moments(o.index);
  }

  __device__ void sweep(const Obstacle& o, const Sight& first, float looked, Toward toward) {
    if constexpr (kMode == Mode::exact) {
      walk(ExactWalk(), o, first, looked, toward);
    } else if (o.shape == Shape::mesh) {
      walk(CuroboWalk(), o, first, looked, toward);
    } else {
      walk(CuroboCuboidWalk(), o, first, looked, toward);
    }
  }

  template <class Walk>
  __device__ void walk(Walk walk, const Obstacle& o, const Sight& first, float looked, Toward toward) {
    const Settings& settings = call_.settings;
    if (!walk.start(row_, settings, first, looked, toward)) return;
    const Vec<float> neighbour = toward == Toward::before ? row_.before : row_.after;
    int hint = first.slot;
    Sight sight;
    do {
      const float fraction = walk.fraction();
      const Vec<float> place = to_object(o, sample_at(row_.own.centre, fraction, neighbour));
      sight = look<kMode>(o, lanes_, place, walk.reach(row_, settings), hint);
      if (sight.slot >= 0) hint = sight.slot;
      add(o, sight, place, fraction, toward);
    } while (walk.advance(row_, settings, sight, toward));
  }

  const Call& call_;
  const RowLanes& lanes_;
  int64_t number_;
  QueryRow row_;
  Moments moments_;
};

template <Mode kMode, bool kSweep>
__global__ void __launch_bounds__(kThreads, kBlocks) rows_kernel(const __grid_constant__ Call call) {
  const int64_t number = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWide;
  if (number >= call.rows) return;
  const RowLanes lanes = RowLanes::of_thread();
  Row<kMode, kSweep> row(call, lanes, number);
  if (row.on()) {
    const Spheres& s = call.spheres;
    row.evaluate(s.environments == nullptr ? 0 : s.environments[number / (int64_t{s.horizon} * s.count)]);
  }
  row.store();
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

}  // namespace

DeviceTimer cuda_evaluate(const World& world, const Spheres& spheres, const Settings& settings, const Outputs& outputs,
                          CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const auto environments = static_cast<std::size_t>(world.environments);
  const auto obstacles = static_cast<std::size_t>(world.begin[environments]);
  DeviceBuffer<Obstacle> on_device(obstacles, stream);
  DeviceBuffer<int32_t> begin(environments + 1, stream);
  workspace.staging.copy(on_device.data(), world.obstacles, obstacles * sizeof(Obstacle), stream);
  workspace.staging.copy(begin.data(), world.begin, begin.bytes(), stream);
  const int64_t rows = int64_t{spheres.batches} * spheres.horizon * spheres.count;
  const Call call = {on_device.data(),     begin.data(),          rows, spheres, settings, outputs,
                     needs_costs(outputs), needs_closest(outputs)};
  launch(kernel_of(settings), blocks_for(static_cast<std::size_t>(rows), kRowsOfBlock), kThreads, 0, stream, call);
  timer.mark("query");
  return timer;
}

}  // namespace lumigrad::meshes
