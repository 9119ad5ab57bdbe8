// Python bindings of the mesh engine on CUDA devices. The Python package checks every argument before the call; worlds
// and settings are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "common/cuda/binding.h"
#include "meshes/bind_arrays.h"
#include "meshes/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

LG_BEGIN_ENGINE(meshes)

// A mesh on a device.
struct CudaTree {
  std::shared_ptr<const CudaMesh> mesh;
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
  using meshes::CudaTree;
  bind_session<meshes::CudaWorkspace>(m, "MeshCudaSession");
  nb::class_<CudaTree>(m, "MeshCudaTree")
      .def_static("build", &meshes::build, "session"_a, "stream"_a, "host"_a,
                  "Queues the building of the hierarchy of a mesh in host memory.")
      .def("moved", &meshes::moved, "session"_a, "stream"_a, "host"_a,
           "Queues its fitting to the same faces with other vertices; `host` was not rebuilt.")
      .def_prop_ro("bytes", [](const CudaTree& t) { return t.mesh->bytes(); });
  m.def("mesh_cuda_solid", &meshes::solid, "tree"_a, "sign"_a, "turned"_a);
  m.def("mesh_cuda_evaluate", &meshes::evaluate, "session"_a, "stream"_a, "world"_a, "settings"_a, "arrays"_a);
}

}  // namespace lumigrad
