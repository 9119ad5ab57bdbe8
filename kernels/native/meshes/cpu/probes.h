// Points in the frame of one obstacle, and their distances to it.
#pragma once

#include "meshes/cpu/closest.h"
#include "meshes/cpu/sign.h"
#include "meshes/math/distance.h"
#include "meshes/math/query.h"

LG_BEGIN_ENGINE(meshes)

inline constexpr int kChunk = 512;
// Worlds with more obstacles than this have shorter chunks, so that launches can be short too; rows take 3 % longer.
inline constexpr int kManyObstacles = 4096, kShortChunk = 128;
inline int64_t chunk_rows(int64_t obstacles) { return obstacles > kManyObstacles ? kShortChunk : kChunk; }

// The state that a thread of a call keeps from obstacle to obstacle.
struct Probes {
  int count;
  alignas(64) float x[kChunk], y[kChunk], z[kChunk];
  float limit[kChunk];  // The search radius; exact: unlimited inside a mesh.
  Sight seen[kChunk];
  // The probes that are near enough to need a search.
  int near[kChunk];
  alignas(64) float near_x[kChunk], near_y[kChunk], near_z[kChunk];
  Nearest nearest[kChunk];
  uint8_t inside[kChunk];
  Recent recent;  // Recently found slots of the current obstacle.
  Waiting waiting;

  LG_INLINE Vec<float> at(int i) const { return {x[i], y[i], z[i]}; }
  LG_INLINE void add(Vec<float> place, float how_far) {
    x[count] = place.x;
    y[count] = place.y;
    z[count] = place.z;
    limit[count++] = how_far;
  }
};

// Chooses the probes for which the hierarchy must be searched, and how far. The search for a point that cannot be in
// the mesh may stop at the point's limit; for a point that may be deep inside, if its depth matters, it may not.
inline int choose_near(const Obstacle& mesh, Mode mode, Probes& p) {
  const Tree& tree = mesh.tree;
  const Vec<float> low = {tree.low[0], tree.low[1], tree.low[2]}, high = {tree.high[0], tree.high[1], tree.high[2]};
  int count = 0;
  for (int i = 0; i < p.count; ++i) {
    p.seen[i].found = false;
    const float bounds = squared_distance_to_box(p.at(i), low, high), limit = p.limit[i] * p.limit[i];
    const bool deep = mode == Mode::exact && any_depth(mesh, bounds);
    if (!deep && bounds >= limit && bounds > 0.0f) continue;
    p.near[count] = i;
    p.near_x[count] = p.x[i];
    p.near_y[count] = p.y[i];
    p.near_z[count] = p.z[i];
    p.nearest[count++].squared = deep ? INFINITY : limit;
  }
  return count;
}

inline void find_insides(const Obstacle& mesh, Probes& p, int count) {
  if (mesh.sign == Sign::rays) inside_by_rays(mesh.tree, p.near_x, p.near_y, p.near_z, count, p.inside);
  if (mesh.sign == Sign::winding) inside_by_winding(mesh.tree, p.near_x, p.near_y, p.near_z, count, p.inside);
}

// The number of probes by which triangles' data are prefetched: they are far from the memory that the search reads.
inline constexpr int kAhead = 8;

LG_INLINE void fetch_features(const Tree& tree, int slot) {
  if (slot < 0) return;
  __builtin_prefetch(tree.normals + 3ll * slot);
  __builtin_prefetch(tree.neighbours + 3ll * slot);
  __builtin_prefetch(tree.corners + 3ll * slot);
}

inline void probe_mesh(const Obstacle& mesh, Mode mode, Probes& p) {
  const Tree& tree = mesh.tree;
  const int count = choose_near(mesh, mode, p);
  find_closest(tree, {p.near_x, p.near_y, p.near_z, count}, p.nearest, p.recent, p.waiting);
  find_insides(mesh, p, count);
  const bool has_insides = mesh.sign == Sign::rays || mesh.sign == Sign::winding;
  for (int k = 0; k < count; ++k) {
    if (k + kAhead < count) fetch_features(tree, p.nearest[k + kAhead].slot);
    const Nearest& nearest = p.nearest[k];
    if (nearest.slot < 0) continue;
    const int i = p.near[k];
    const Foothold foothold = foothold_at(tree, nearest.slot, nearest.foot, nearest.rest, p.at(i));
    const float sign = sign_of(mesh, foothold.side, has_insides && p.inside[k] != 0);
    Sight& seen = p.seen[i];
    seen.slot = nearest.slot;
    if (mode == Mode::exact) {
      seen.at = contact_of(foothold, sign, tree.extent);
      seen.found = seen.at.value < p.limit[i];
    } else {
      seen.at = contact_of_curobo(foothold, sign, tree.extent);
      seen.found = foothold.length < p.limit[i];
    }
  }
}

inline void probe_cuboid(const Obstacle& cuboid, Probes& p) {
  const Vec<Pack> half = {Pack(cuboid.half[0]), Pack(cuboid.half[1]), Pack(cuboid.half[2])};
  for (int i = 0; i < p.count; i += kLanes) {
    const Vec<Pack> at = {Pack::load(p.x + i), Pack::load(p.y + i), Pack::load(p.z + i)};
    const Distance<Pack> d = distance_to_cuboid(at, half);
    alignas(64) float lanes[4][kLanes];
    d.value.store(lanes[0]);
    d.gradient.x.store(lanes[1]);
    d.gradient.y.store(lanes[2]);
    d.gradient.z.store(lanes[3]);
    for (int k = 0; k < kLanes && i + k < p.count; ++k) {
      p.seen[i + k].at = {lanes[0][k], {lanes[1][k], lanes[2][k], lanes[3][k]}};
      p.seen[i + k].found = lanes[0][k] < p.limit[i + k];
    }
  }
}

inline void probe_grid(const Obstacle& grid, Mode mode, Probes& p) {
  for (int i = 0; i < p.count; ++i) {
    Sight& seen = p.seen[i];
    if (mode == Mode::exact) {
      seen.at = distance_to_grid(grid, p.at(i));
      seen.found = seen.at.value < p.limit[i];
    } else {
      seen.found = distance_to_grid_curobo(grid, p.at(i), seen.at);
    }
  }
}

inline void probe(const Obstacle& obstacle, Mode mode, Probes& p) {
  switch (obstacle.shape) {
    case Shape::mesh:
      return probe_mesh(obstacle, mode, p);
    case Shape::cuboid:
      return probe_cuboid(obstacle, p);
    case Shape::grid:
      return probe_grid(obstacle, mode, p);
  }
}

LG_END
