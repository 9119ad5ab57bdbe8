// Python bindings of the mesh engine on CUDA devices. The Python package checks every argument before the call; worlds
// and settings are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <utility>

#include "common/cuda/binding.h"
#include "meshes/bind_arrays.h"
#include "meshes/bind_report.h"
#include "meshes/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

LG_BEGIN_ENGINE(meshes)

// A mesh on a device.
struct CudaTree {
  std::shared_ptr<const CudaMesh> mesh;
};

// A mesh that a device refitted.
struct CudaRefit {
  Refit found;
};

namespace {

using Session = CudaSession<CudaWorkspace>;

CudaTree build(Session& session, std::uintptr_t stream, const MeshTree& host) {
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaTree {
    return {CudaMesh::build(*host.mesh, session.workspace.staging, on)};
  });
}

CudaTree moved(const CudaTree& tree, Session& session, std::uintptr_t stream, const MeshTree& host) {
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaTree {
    return {tree.mesh->moved(*host.mesh, session.workspace.staging, on)};
  });
}

// `vertices`: the address of [vertices, 3] doubles on the device.
std::optional<CudaRefit> refitted(const CudaTree& tree, Session& session, std::uintptr_t stream, const MeshTree& base,
                                  std::uintptr_t vertices, double most) {
  return on_device(session.device, stream, [&](cudaStream_t on) -> std::optional<CudaRefit> {
    const auto* values = reinterpret_cast<const double*>(vertices);
    auto found = tree.mesh->refitted(*base.mesh, values, most, session.workspace, on);
    if (!found) return std::nullopt;
    return CudaRefit{std::move(*found)};
  });
}

Solid solid(nb::object tree, int sign, bool turned) {
  return solid_mesh(nb::cast<const CudaTree&>(tree).mesh->tree(), sign, turned, tree);
}

CudaStages evaluate(Session& session, std::uintptr_t stream, const PlacedWorld& world, const Settings& settings,
                    const nb::kwargs& arrays) {
  const Spheres spheres = make_spheres(arrays);
  const Outputs outputs = make_outputs(arrays);
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaStages {
    return {cuda_evaluate(world.world(), spheres, settings, outputs, session.workspace, on)};
  });
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_meshes(nb::module_& m) {
  using meshes::CudaRefit, meshes::CudaTree;
  bind_session<meshes::CudaWorkspace>(m, "MeshCudaSession");
  nb::class_<CudaTree>(m, "MeshCudaTree")
      .def_static("build", &meshes::build, "session"_a, "stream"_a, "host"_a,
                  "Queues the building of the hierarchy of a mesh in host memory.")
      .def("moved", &meshes::moved, "session"_a, "stream"_a, "host"_a,
           "Queues its fitting to the same faces with other vertices; `host` was not rebuilt.")
      .def("refitted", &meshes::refitted, "session"_a, "stream"_a, "base"_a, "vertices"_a, "most"_a,
           "Refits it to vertices on the device; None if the host must do it. `base` is a mesh of the same topology.")
      // Another thread may hold the mutex that this takes for as long as it lists a mesh's corners.
      .def_prop_ro(
          "bytes", [](const CudaTree& t) { return t.mesh->bytes(); }, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<CudaRefit>(m, "MeshCudaRefit")
      .def_prop_ro("tree", [](const CudaRefit& r) -> CudaTree { return {r.found.mesh}; })
      .def_prop_ro("report", [](const CudaRefit& r) { return meshes::report_dict(r.found.report); })
      .def_prop_ro("rebuilt", [](const CudaRefit&) { return false; })
      .def_prop_ro("growth", [](const CudaRefit& r) { return r.found.growth; });
  m.def("mesh_cuda_solid", &meshes::solid, "tree"_a, "sign"_a, "turned"_a);
  m.def("mesh_cuda_evaluate", &meshes::evaluate, "session"_a, "stream"_a, "world"_a, "settings"_a, "arrays"_a);
}

}  // namespace lumigrad
