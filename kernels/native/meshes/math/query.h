// A row of a query: its sphere, its evaluation against one obstacle after another, and its results.
#pragma once

#include "meshes/math/contact.h"
#include "meshes/math/grid.h"
#include "meshes/math/row.h"

LG_BEGIN_ENGINE(meshes)

// The result of searching an obstacle from one position.
struct Sight {
  Distance<float> at;  // In the obstacle's frame.
  int32_t slot;        // Slot of a mesh.
  bool found;
};

// The result for the closest obstacle so far.
struct ClosestSight {
  float distance;
  Vec<float> normal, point;  // World frame.
  int32_t face, obstacle;    // -1 if nothing was found.
};

// The sample with the largest cost, in the frame of its obstacle; obstacle -1 if no sample has a cost.
struct WinningSample {
  int32_t obstacle;
  Vec<float> gradient, place;
};

struct QueryRow {
  Sphere own;
  float inflated;                 // Radius plus activation distance; for a field, the radius.
  Vec<float> before, after;       // Adjacent centres; the own centre if there is none to sweep to.
  float half_before, half_after;  // Half the distances to them; 0 if not swept.
  bool scaled;                    // Whether costs are scaled by the speed.
  bool exhausted;
  float field;  // Largest depth of the centre itself.
  RowSums sums;
  ClosestSight closest;
  WinningSample winner;
};

LG_INLINE float half_way(Vec<float> from, Vec<float> to) {
  const Vec<float> way = to - from;
  return 0.5f * sqrt(dot(way, way));
}

LG_INLINE QueryRow row_of(const Spheres& spheres, const Settings& settings, int64_t number) {
  QueryRow row{};
  row.own = sphere_at(spheres.rows, number);
  row.inflated = row.own.radius + (settings.mode == Mode::curobo_field ? 0.0f : settings.activation);
  row.before = row.after = row.own.centre;
  row.closest.distance = settings.reach;
  row.closest.point = row.own.centre;
  row.closest.face = row.closest.obstacle = row.winner.obstacle = -1;
  row.field = -search_radius_curobo(row.inflated, settings.reach);
  if (!settings.sweep && !settings.speed) return row;
  const int64_t step = number / spheres.count % spheres.horizon;
  Sphere before = row.own, after = row.own;
  if (step > 0) before = sphere_at(spheres.rows, number - spheres.count);
  if (step + 1 < spheres.horizon) after = sphere_at(spheres.rows, number + spheres.count);
  // cuRobo also sweeps to spheres of negative radius (spec section 6).
  const bool any = settings.mode != Mode::exact;
  const bool has_before = step > 0 && (any ? before.finite() : before.on());
  const bool has_after = step + 1 < spheres.horizon && (any ? after.finite() : after.on());
  if (has_before) row.before = before.centre;
  if (has_after) row.after = after.centre;
  if (settings.sweep) {
    row.half_before = half_way(row.own.centre, row.before);
    row.half_after = half_way(row.own.centre, row.after);
  }
  row.scaled = settings.speed && has_before && has_after;
  return row;
}

// A little more than half the way, so that an obstacle that is not found is certainly farther away.
inline constexpr float kBeyondHalf = 1.00001f;

// The search radius of a row's centre, for costs, for the closest obstacle, or both.
LG_INLINE float reach_of_centre(const QueryRow& row, const Settings& settings, bool costs, bool closest) {
  if (settings.mode != Mode::exact) return search_radius_curobo(row.inflated, settings.reach);
  return max(closest ? row.closest.distance : 0.0f,
             costs ? row.inflated + kBeyondHalf * max(row.half_before, row.half_after) : 0.0f);
}

// Adds the cost of a sample at `place` with the result `sight`, in the obstacle's frame. Returns whether `gradient`,
// d cost / d place in that frame, counts; with a maximum, it counts until a larger cost is found.
LG_INLINE bool add_sample(QueryRow& row, const Settings& settings, const Obstacle& obstacle, const Sight& sight,
                          Vec<float> place, float fraction, Toward toward, Vec<float>& gradient) {
  // Beyond the reach there is no cost.
  if (!sight.found || (settings.mode == Mode::exact && !(sight.at.value < settings.reach))) return false;
  const Sample sample = sample_of(obstacle, sight.at, row.inflated, settings.activation, fraction, toward);
  if (!(sample.cost.value > 0.0f)) return false;
  gradient = -sample.cost.slope * sight.at.gradient;
  if (settings.mode != Mode::exact) {
    row.sums.add_curobo(sample);
  } else if (!settings.maximum) {
    row.sums.add(sample);
  } else {
    if (!row.sums.add_maximum(sample)) return false;
    row.winner = {obstacle.index, gradient, place};
  }
  return true;
}

LG_INLINE void keep_closest(QueryRow& row, const Obstacle& obstacle, const Sight& sight, Vec<float> place) {
  if (!sight.found || !(sight.at.value < row.closest.distance)) return;
  Vec<float> surface = along(place, -sight.at.value, sight.at.gradient);
  if (obstacle.shape == Shape::grid) surface = surface_point_of_grid(place, sight.at);
  row.closest = {sight.at.value, rotated_back(obstacle.rotation, sight.at.gradient), to_world(obstacle, surface),
                 obstacle.shape == Shape::mesh ? obstacle.tree.faces[sight.slot] : -1, obstacle.index};
}

LG_INLINE void keep_field(QueryRow& row, const Obstacle& obstacle, const Sight& sight, float reach) {
  if (!sight.found || !(-sight.at.value > row.field)) return;
  if (obstacle.shape == Shape::cuboid && !(sight.at.value < row.own.radius + reach)) return;
  row.field = -sight.at.value;
  row.sums = RowSums{};
  row.sums.put(3, -1.0f, rotated_back(obstacle.rotation, sight.at.gradient));
}

// The floor of cuRobo's field, which differs if there are only cuboids (spec section 5).
LG_INLINE float field_floor(float radius, float reach, const Obstacle* begin, const Obstacle* end) {
  bool cuboids = begin != end;
  for (const Obstacle* o = begin; o != end; ++o) cuboids = cuboids && o->shape == Shape::cuboid;
  return cuboids ? -(2.0f * reach + radius) : -search_radius_curobo(radius, reach);
}

// Computes the results that need all obstacles.
LG_INLINE void finish_row(QueryRow& row, const Settings& settings) {
  RowSums& sums = row.sums;
  if (settings.mode == Mode::curobo_field) {
    sums.cost = row.field;
  } else if (row.scaled && sums.cost > 0.0f) {
    if (settings.mode == Mode::exact) {
      scale_by_speed(row.before, row.after, settings.dt, sums.cost, sums.jacobian);
    } else {
      scale_by_speed_curobo(row.before, row.own.centre, row.after, settings.dt, sums.cost, sums.jacobian + 3);
    }
  }
}

LG_INLINE void store_vector(float* to, int64_t row, Vec<float> v) {
  to[3 * row] = v.x;
  to[3 * row + 1] = v.y;
  to[3 * row + 2] = v.z;
}

LG_INLINE void store_row(const QueryRow& row, const Settings& settings, const Outputs& out, int64_t i) {
  if (out.cost != nullptr) out.cost[i] = row.sums.cost;
  if (out.jacobian != nullptr) {
    for (int k = 0; k < kJacobianFloats; ++k) out.jacobian[i * kJacobianFloats + k] = row.sums.jacobian[k];
  }
  if (out.exhausted != nullptr) out.exhausted[i] = row.exhausted;
  const ClosestSight& c = row.closest;
  if (out.distance != nullptr) out.distance[i] = c.distance;
  if (out.normal != nullptr) store_vector(out.normal, i, c.normal);
  if (out.closest != nullptr) store_vector(out.closest, i, c.point);
  if (out.face != nullptr) out.face[i] = c.face;
  if (out.obstacle != nullptr) out.obstacle[i] = c.obstacle;
  if (out.beyond != nullptr) out.beyond[i] = row.own.on() && c.obstacle < 0 && settings.reach < INFINITY;
}

LG_INLINE bool needs_costs(const Outputs& out) {
  return out.cost != nullptr || out.jacobian != nullptr || out.exhausted != nullptr || out.moments != nullptr;
}

// Whether the outputs depend on the closest obstacle.
LG_INLINE bool needs_closest(const Outputs& out) {
  return out.distance != nullptr || out.normal != nullptr || out.closest != nullptr || out.face != nullptr ||
         out.obstacle != nullptr || out.beyond != nullptr;
}

LG_END
