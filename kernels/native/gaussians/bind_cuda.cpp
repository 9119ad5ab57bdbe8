// Python bindings of the Gaussian engine on CUDA devices. The Python package checks every argument before the call;
// views and settings are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/cuda/launch.h"
#include "gaussians/bind_arrays.h"
#include "gaussians/cuda/engine.h"
#include "gaussians/cuda/ids.h"
#include "gaussians/cuda/kept.h"

namespace nb = nanobind;
using namespace nb::literals;

// One namespace per build keeps the emulation's classes from being taken for those of a GPU.
LG_BEGIN_ENGINE(gaussians)

// A device and what its calls share.
struct CudaSession {
  int device;
  CudaWorkspace workspace;
};

// The times of a call's stages.
struct CudaStages {
  DeviceTimer timer;
};

namespace {

cudaStream_t stream_of(std::uintptr_t handle) { return reinterpret_cast<cudaStream_t>(handle); }

CudaStages forward(CudaSession& session, std::uintptr_t stream, CudaKept& kept, const Views& views,
                   const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Outputs outputs = make_outputs(arrays);
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {cuda_forward(views.views.data(), views.count(), settings, scene, outputs, kept.pass, session.workspace,
                       stream_of(stream))};
}

CudaStages find_ids(CudaSession& session, std::uintptr_t stream, const CudaKept& kept, const Views& views,
                    const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  int32_t* ids = find<int32_t>(arrays, "ids");
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {cuda_ids(views.views.data(), views.count(), settings, scene, ids, kept.pass, session.workspace,
                   stream_of(stream))};
}

CudaStages backward(CudaSession& session, std::uintptr_t stream, const CudaKept& kept, const Views& views,
                    const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {cuda_backward(views.views.data(), views.count(), settings, scene, upstream, gradients, kept.pass,
                        session.workspace, stream_of(stream))};
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_gaussians(nb::module_& m) {
  using gaussians::CudaKept;
  using gaussians::CudaSession;
  using gaussians::CudaStages;
  nb::class_<CudaSession>(m, "GaussianCudaSession")
      .def(
          "__init__",
          [](CudaSession* self, int device) {
            const DeviceGuard guard(device);
            new (self) CudaSession{device, {}};
          },
          "device"_a)
      .def(
          "set_pair_limit", [](CudaSession& s, std::size_t limit) { s.workspace.pair_limit = limit; }, "limit"_a,
          "More (tile, Gaussian) pairs than this are not listed; drawing is much slower then, but needs less memory.");
  nb::class_<CudaKept>(m, "GaussianCudaPass").def(nb::init<>()).def_prop_ro("bytes", [](const CudaKept& k) {
    return k.pass.bytes();
  });
  nb::class_<CudaStages>(m, "GaussianCudaStages")
      .def(
          "milliseconds", [](const CudaStages& s) { return s.timer.milliseconds(); },
          "(stage, milliseconds) of a call; empty while the device is still at work on it.");
  m.def("gaussian_cuda_forward", &gaussians::forward, "session"_a, "stream"_a, "state"_a, "views"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_cuda_find_ids", &gaussians::find_ids, "session"_a, "stream"_a, "state"_a, "views"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_cuda_backward", &gaussians::backward, "session"_a, "stream"_a, "state"_a, "views"_a, "settings"_a,
        "arrays"_a);
}

}  // namespace lumigrad
