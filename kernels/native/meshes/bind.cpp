// Python bindings of the mesh engine. The Python package checks every argument before the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "common/apart.h"
#include "meshes/bind_arrays.h"
#include "meshes/bind_report.h"
#include "meshes/cpu/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace meshes;
using Vertices = nb::ndarray<const double, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using Faces = nb::ndarray<const int32_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using Placements = nb::ndarray<const double, nb::shape<-1, 12>, nb::c_contig, nb::device::cpu>;

// Builds a hierarchy on a separate thread pool: this may take seconds, during which a device's thread continues.
MeshTree build(const Vertices& vertices, const Faces& faces) {
  nb::gil_scoped_release unlocked;
  const Apart apart;
  return {Mesh::build(vertices.data(), static_cast<int64_t>(vertices.shape(0)), faces.data(),
                      static_cast<int64_t>(faces.shape(0)))};
}

// `move`: a member function of Mesh that takes vertices.
template <auto move>
MeshTree moved(const MeshTree& tree, const Vertices& vertices) {
  if (static_cast<int64_t>(vertices.shape(0)) != tree.mesh->report().vertices) {
    throw std::invalid_argument("a moved mesh keeps its number of vertices");
  }
  nb::gil_scoped_release unlocked;
  const Apart apart;
  return {((*tree.mesh).*move)(vertices.data())};
}

// `before`: the tree from which `tree` was moved, or null if it was built.
MeshTree with_upright(const MeshTree& tree, const Vertices& vertices, const MeshTree* before) {
  if (static_cast<int64_t>(vertices.shape(0)) != tree.mesh->report().vertices) {
    throw std::invalid_argument("a mesh keeps its number of vertices");
  }
  nb::gil_scoped_release unlocked;
  const Apart apart;
  return {tree.mesh->with_upright(vertices.data(), before == nullptr ? nullptr : before->mesh.get())};
}

MeshTree upright(const MeshTree& tree) { return {tree.mesh->upright()}; }

MeshTree with_dipoles(const MeshTree& tree) {
  nb::gil_scoped_release unlocked;
  const Apart apart;
  return {tree.mesh->with_dipoles()};
}

Solid tree_solid(nb::object tree, int sign, bool turned) {
  return solid_mesh(nb::cast<const MeshTree&>(tree).mesh->tree(), sign, turned, tree);
}

Solid cuboid_solid(const std::array<double, 3>& half) {
  Solid s{};
  s.obstacle.shape = Shape::cuboid;
  for (int i = 0; i < 3; ++i) s.obstacle.half[i] = static_cast<float>(half[i]);
  return s;
}

Solid grid_solid(nb::object values, double voxel) {
  Solid s{};
  const auto array = nb::cast<nb::ndarray<const float, nb::ndim<3>, nb::c_contig>>(values, false);
  s.obstacle.shape = Shape::grid;
  s.obstacle.values = array.data();
  s.obstacle.voxel = static_cast<float>(voxel);
  for (int i = 0; i < 3; ++i) {
    s.obstacle.dims[i] = static_cast<int32_t>(array.shape(i));
    s.obstacle.half[i] = static_cast<float>(0.5 * voxel * static_cast<double>(array.shape(i) - 1));
  }
  s.kept = std::move(values);
  return s;
}

// Placement i maps points of the world to the object of solid i: rotation (row-major), translation. Solid i has number
// numbers[i] in a list of `listed`; solids are ordered by environment, and environment e begins at begin[e].
PlacedWorld make_world(nb::list solids, const Placements& placements, const std::vector<int32_t>& numbers,
                       const std::vector<int32_t>& begin, int listed) {
  const std::size_t count = nb::len(solids);
  if (placements.shape(0) != count || numbers.size() != count || begin.empty() ||
      static_cast<std::size_t>(begin.back()) != count) {
    throw std::invalid_argument("a world needs a placement and a number for each solid");
  }
  PlacedWorld world{{}, begin, listed, solids};
  world.obstacles.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Solid& solid = nb::cast<const Solid&>(solids[i]);
    const double* placement = placements.data() + 12 * i;
    Obstacle& o = world.obstacles.emplace_back(solid.obstacle);
    o.index = numbers[i];
    for (int k = 0; k < 9; ++k) o.rotation[k] = static_cast<float>(placement[k]);
    for (int k = 0; k < 3; ++k) o.translation[k] = static_cast<float>(placement[9 + k] - solid.centre[k]);
  }
  return world;
}

Settings make_settings(int mode, bool sweep, bool speed, bool maximum, double activation, double reach, int samples,
                       double dt) {
  return {static_cast<Mode>(mode),
          sweep,
          speed,
          maximum,
          static_cast<float>(activation),
          static_cast<float>(reach),
          samples,
          static_cast<float>(dt)};
}

void evaluate(Workspace& workspace, const PlacedWorld& world, const Settings& settings, const nb::kwargs& arrays) {
  const Spheres spheres = make_spheres(arrays);
  const Outputs outputs = make_outputs(arrays);
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).evaluate(world.world(), spheres, settings, outputs, workspace);
}

void bind_world(nb::module_& m) {
  nb::class_<MeshTree>(m, "MeshTree")
      .def_static("build", &build, "vertices"_a, "faces"_a)
      .def("moved", &moved<&Mesh::moved>, "vertices"_a)
      .def("refitted", &moved<&Mesh::refitted>, "vertices"_a)
      .def_prop_ro("is_one_solid", [](const MeshTree& t) { return t.mesh->is_one_solid(); })
      .def("with_upright", &with_upright, "vertices"_a, "before"_a.none())
      .def_prop_ro("upright_faces", [](const MeshTree& t) { return t.mesh->upright_faces(); })
      .def("upright", &upright)
      .def_prop_ro("has_upright", [](const MeshTree& t) { return t.mesh->upright() != t.mesh; })
      .def("with_dipoles", &with_dipoles)
      .def_prop_ro("report", [](const MeshTree& t) { return report_dict(t.mesh->report()); })
      .def_prop_ro("centre",
                   [](const MeshTree& t) {
                     const Tree tree = t.mesh->tree();
                     return std::array<double, 3>{tree.centre[0], tree.centre[1], tree.centre[2]};
                   })
      .def_prop_ro("rebuilt", [](const MeshTree& t) { return t.mesh->rebuilt(); })
      .def_prop_ro("growth", [](const MeshTree& t) { return t.mesh->growth(); })
      .def_prop_ro("bytes", [](const MeshTree& t) { return t.mesh->bytes(); });
  nb::class_<Solid>(m, "MeshSolid").def_prop_ro("centre", [](const Solid& s) {
    return std::array<double, 3>{s.centre[0], s.centre[1], s.centre[2]};
  });
  nb::class_<PlacedWorld>(m, "MeshWorld");
  nb::class_<Settings>(m, "MeshSettings");
  m.attr("MESH_JACOBIAN_FLOATS") = kJacobianFloats;
  m.attr("MESH_MOMENT_DOUBLES") = kMomentDoubles;
  m.def("mesh_solid", &tree_solid, "tree"_a, "sign"_a, "turned"_a);
  m.def("mesh_cuboid_solid", &cuboid_solid, "half"_a);
  m.def("mesh_grid_solid", &grid_solid, "values"_a, "voxel"_a);
  m.def("make_mesh_world", &make_world, "solids"_a, "placements"_a, "numbers"_a, "begin"_a, "listed"_a);
  m.def("make_mesh_settings", &make_settings, nb::kw_only(), "mode"_a, "sweep"_a, "speed"_a, "maximum"_a,
        "activation"_a, "reach"_a, "samples"_a, "dt"_a);
}

}  // namespace

void bind_meshes(nb::module_& m) {
  bind_world(m);
  nb::class_<Workspace>(m, "MeshWorkspace")
      .def(nb::init<>())
      .def_prop_ro("bytes", &Workspace::bytes)
      .def_prop_ro("milliseconds", [](const Workspace& w) {
        return std::array<double, std::size(kStageNames)>{w.milliseconds[0], w.milliseconds[1]};
      });
  nb::list stages;
  for (const char* name : kStageNames) stages.append(name);
  m.attr("MESH_STAGES") = nb::tuple(stages);
  m.def("mesh_evaluate", &evaluate, "workspace"_a, "world"_a, "settings"_a, "arrays"_a);
}

}  // namespace lumigrad
