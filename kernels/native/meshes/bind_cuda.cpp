// Python bindings of the mesh engine on CUDA devices. The Python package checks every argument before the call; worlds
// and settings are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/cuda/launch.h"
#include "meshes/bind_arrays.h"
#include "meshes/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

// One namespace per build keeps the emulation's classes from being taken for those of a GPU.
LG_BEGIN_ENGINE(meshes)

// A device and what its calls share.
struct CudaSession {
  int device;
  CudaWorkspace workspace;
};

// A mesh on a device.
struct CudaTree {
  std::shared_ptr<const CudaMesh> mesh;
};

// The times of a call's stages.
struct CudaStages {
  DeviceTimer timer;
};

namespace {

cudaStream_t stream_of(std::uintptr_t handle) { return reinterpret_cast<cudaStream_t>(handle); }

CudaTree build(CudaSession& session, std::uintptr_t stream, const MeshTree& host) {
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {CudaMesh::build(*host.mesh, session.workspace.staging, stream_of(stream))};
}

CudaTree moved(const CudaTree& tree, CudaSession& session, std::uintptr_t stream, const MeshTree& host) {
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {tree.mesh->moved(*host.mesh, session.workspace.staging, stream_of(stream))};
}

Solid solid(nb::object tree, int sign, bool turned) {
  return solid_mesh(nb::cast<const CudaTree&>(tree).mesh->tree(), sign, turned, tree);
}

CudaStages evaluate(CudaSession& session, std::uintptr_t stream, const PlacedWorld& world, const Settings& settings,
                    const nb::kwargs& arrays) {
  const Spheres spheres = make_spheres(arrays);
  const Outputs outputs = make_outputs(arrays);
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {cuda_evaluate(world.world(), spheres, settings, outputs, session.workspace, stream_of(stream))};
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_meshes(nb::module_& m) {
  using meshes::CudaSession;
  using meshes::CudaStages;
  using meshes::CudaTree;
  nb::class_<CudaSession>(m, "MeshCudaSession")
      .def(
          "__init__",
          [](CudaSession* self, int device) {
            const DeviceGuard guard(device);
            new (self) CudaSession{device, {}};
          },
          "device"_a);
  nb::class_<CudaTree>(m, "MeshCudaTree")
      .def_static("build", &meshes::build, "session"_a, "stream"_a, "host"_a,
                  "Queues the building of the hierarchy of a mesh in host memory.")
      .def("moved", &meshes::moved, "session"_a, "stream"_a, "host"_a,
           "Queues its fitting to the same faces with other vertices; `host` was not rebuilt.")
      .def_prop_ro("bytes", [](const CudaTree& t) { return t.mesh->bytes(); });
  nb::class_<CudaStages>(m, "MeshCudaStages")
      .def(
          "milliseconds", [](const CudaStages& s) { return s.timer.milliseconds(); },
          "(stage, milliseconds) of a call; empty while the device is still at work on it.");
  m.def("mesh_cuda_solid", &meshes::solid, "tree"_a, "sign"_a, "turned"_a);
  m.def("mesh_cuda_evaluate", &meshes::evaluate, "session"_a, "stream"_a, "world"_a, "settings"_a, "arrays"_a);
}

}  // namespace lumigrad
