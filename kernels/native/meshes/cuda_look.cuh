// What a row sees of one obstacle from one place.
#pragma once

#include "meshes/cuda_search.cuh"
#include "meshes/math_cuboid.h"
#include "meshes/math_query.h"

namespace lumigrad::meshes {

__device__ inline Vec<float> vector_of(const float* numbers) { return {numbers[0], numbers[1], numbers[2]}; }

__device__ inline bool is_inside(const Obstacle& mesh, const RowLanes& lanes, Vec<float> p) {
  if (mesh.sign == Sign::rays) return inside_by_rays(mesh.tree, lanes, p);
  return mesh.sign == Sign::winding && inside_by_winding(mesh.tree, lanes, p);
}

// A point that cannot be in the mesh may stop at its limit; one that may be deep in it, if that counts, may not.
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

// From `p` in the obstacle's frame, as far as `limit`; `hint` is a slot that was seen nearby, or -1. A function of its
// own, since a row looks from several places in its code.
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

}  // namespace lumigrad::meshes
