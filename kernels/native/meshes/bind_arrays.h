// Conversion of the objects and named arrays of a Python call to the structs of params.h, for CPU and CUDA. The Python
// package checks everything before the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

#include "common/bind_arrays.h"
#include "common/math/number.h"
#include "meshes/mesh.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

// A mesh in host memory.
struct MeshTree {
  std::shared_ptr<const Mesh> mesh;
};

// A shape and its sign policy, without a pose, so that many worlds can share it.
struct Solid {
  Obstacle obstacle;
  double centre[3];       // Centre of the tree, in the object's frame; 0 for other shapes.
  nanobind::object kept;  // Owner of the memory that `obstacle` points to.
};

// Placed solids.
struct PlacedWorld {
  std::vector<Obstacle> obstacles;
  std::vector<int32_t> begin;
  int32_t listed;
  nanobind::list kept;

  World world() const { return {obstacles.data(), begin.data(), static_cast<int32_t>(begin.size()) - 1, listed}; }
};

}  // namespace lumigrad::meshes

LG_BEGIN_ENGINE(meshes)

inline Solid solid_mesh(const Tree& tree, int sign, bool turned, nanobind::object kept) {
  Solid s{{}, {tree.centre[0], tree.centre[1], tree.centre[2]}, std::move(kept)};
  s.obstacle.shape = Shape::mesh;
  s.obstacle.tree = tree;
  s.obstacle.sign = static_cast<Sign>(sign);
  s.obstacle.orientation = turned ? -1.0f : 1.0f;
  return s;
}

inline Spheres make_spheres(const nanobind::kwargs& arrays) {
  Spheres s{};
  CallArray<float> rows;
  if (find_array(arrays, "spheres", rows)) {
    s.rows = rows.data();
    s.batches = static_cast<int32_t>(rows.shape(0));
    s.horizon = static_cast<int32_t>(rows.shape(1));
    s.count = static_cast<int32_t>(rows.shape(2));
  }
  s.environments = find<int32_t>(arrays, "environments");
  return s;
}

inline Outputs make_outputs(const nanobind::kwargs& arrays) {
  Outputs o{};
  o.cost = find<float>(arrays, "cost");
  o.jacobian = find<float>(arrays, "jacobian");
  o.exhausted = find<uint8_t>(arrays, "exhausted");
  o.distance = find<float>(arrays, "distance");
  o.normal = find<float>(arrays, "normal");
  o.closest = find<float>(arrays, "closest");
  o.face = find<int32_t>(arrays, "face");
  o.obstacle = find<int32_t>(arrays, "instance");
  o.beyond = find<uint8_t>(arrays, "beyond");
  o.upstream = find<float>(arrays, "upstream");
  o.moments = find<double>(arrays, "moments");
  return o;
}

LG_END
