// The evaluation of a row between its searches.
#pragma once

#include <type_traits>

#include "common/cuda/primitives.cuh"
#include "meshes/math/sweep.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

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

// The next search of a row: an obstacle from a place in its frame, up to the distance `limit`. `hint` is a slot that
// was found nearby, or -1. `on` is false if no search is left; the obstacle is then any of the call's.
struct Probe {
  const Obstacle* obstacle;
  Vec<float> place;
  float limit;
  int32_t hint;
  bool on;
};

// The samples of a sweep in cuRobo's modes.
struct CuroboWalks {
  CuroboWalk past_mesh;
  CuroboCuboidWalk past_cuboid;
};

// Goes through a row's obstacles and, with kSweep, through the samples of its sweep past each: `probe` is the next
// search, take() takes the result. It lies in shared memory, where only the row's first lane works on it: in registers
// each lane would hold a copy.
template <Mode kMode, bool kSweep>
struct RowWork {
  QueryRow row;
  Probe probe;
  // Whether the last sample counts, and its d cost / d place in the obstacle's frame.
  bool counts;
  Vec<float> gradient;

  __device__ void start(const Call& call, int64_t number) {
    row = row_of(call.spheres, call.settings, number);
    probe.obstacle = call.obstacles;
    probe.on = false;
    if (!row.own.on()) return;
    const Spheres& s = call.spheres;
    const int environment = s.environments == nullptr ? 0 : s.environments[number / (int64_t{s.horizon} * s.count)];
    next_ = call.obstacles + call.begin[environment];
    end_ = call.obstacles + call.begin[environment + 1];
    if constexpr (kMode == Mode::curobo_field) {
      row.field = field_floor(row.own.radius, call.settings.reach, next_, end_);
    }
    ask_next(call);
  }

  __device__ void take(const Call& call, const Sight& sight) {
    bool more;
    if (!kSweep || toward_ == Toward::none) {
      more = take_centre(call, sight);
    } else {
      more = take_sample(call, sight);
    }
    if (more) {
      const Vec<float> neighbour = toward_ == Toward::before ? row.before : row.after;
      const auto ask = [&](const auto& walk) {
        const Vec<float> sample = sample_at(row.own.centre, walk.fraction(), neighbour);
        probe.place = to_object(*probe.obstacle, sample);
        probe.limit = walk.reach(row, call.settings);
      };
      with_walk(ask);
    } else {
      ask_next(call);
    }
  }

 private:
  // Sets `probe` to the next obstacle, from the row's centre.
  __device__ void ask_next(const Call& call) {
    probe.on = next_ != end_;
    if (!probe.on) return;
    probe.obstacle = next_++;
    probe.place = to_object(*probe.obstacle, row.own.centre);
    probe.limit = reach_of_centre(row, call.settings, call.costs, call.closest);
    probe.hint = -1;
    toward_ = Toward::none;
  }

  // Takes the result of the centre; returns whether there is a sample to search from.
  __device__ bool take_centre(const Call& call, const Sight& sight) {
    const Obstacle& o = *probe.obstacle;
    counts = false;
    if constexpr (kMode == Mode::curobo_field) keep_field(row, o, sight, call.settings.reach);
    if (call.closest) keep_closest(row, o, sight, probe.place);
    if (kMode == Mode::curobo_field || !call.costs) return false;
    add(call, sight, 0.0f);
    if constexpr (kSweep) {
      first_ = sight;
      looked_ = probe.limit;
      return sweep(call, Toward::before) || sweep(call, Toward::after);
    }
    return false;
  }

  __device__ bool take_sample(const Call& call, const Sight& sight) {
    if (sight.slot >= 0) probe.hint = sight.slot;
    bool more = false;
    with_walk([&](auto& walk) {
      add(call, sight, walk.fraction());
      more = walk.advance(row, call.settings, sight, toward_);
    });
    return more || (toward_ == Toward::before && sweep(call, Toward::after));
  }

  // Begins the samples in one direction; returns whether there are any.
  __device__ bool sweep(const Call& call, Toward toward) {
    toward_ = toward;
    probe.hint = first_.slot;
    bool any = false;
    with_walk([&](auto& walk) { any = walk.start(row, call.settings, first_, looked_, toward); });
    return any;
  }

  __device__ void add(const Call& call, const Sight& sight, float fraction) {
    counts = add_sample(row, call.settings, *probe.obstacle, sight, probe.place, fraction, toward_, gradient);
  }

  // Calls body(walk) with the walk past the current obstacle.
  template <class Body>
  __device__ void with_walk(const Body& body) {
    if constexpr (kMode == Mode::exact) {
      body(walk_);
    } else if (probe.obstacle->shape == Shape::mesh) {
      body(walk_.past_mesh);
    } else {
      body(walk_.past_cuboid);
    }
  }

  const Obstacle *next_, *end_;
  Sight first_;   // The result from the centre.
  float looked_;  // The radius of the search from the centre.
  Toward toward_;
  std::conditional_t<kMode == Mode::exact, ExactWalk, CuroboWalks> walk_;
};

}  // namespace lumigrad::meshes
