// Python bindings of the sphere engine on CUDA devices. The Python package checks every argument before the call;
// cameras and settings are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/bind_arrays.h"
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/math/number.h"
#include "spheres/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

// In a namespace per build, so that the emulation's classes are not taken for those of a GPU.
LG_BEGIN_ENGINE(spheres)

// A device, and estimates from its calls.
struct CudaSession {
  int device;
  CudaWorkspace workspace;
};

// The forward state for a backward pass.
struct CudaKept {
  CudaPass pass;
};

// The times of a call's stages.
struct CudaStages {
  DeviceTimer timer;
};

namespace {

Scene make_scene(const nb::kwargs& arrays) {
  Scene s{};
  s.count = static_cast<int32_t>(nb::cast<nb::ndarray<float, nb::ndim<1>>>(arrays["radii"]).shape(0));
  s.channels = static_cast<int32_t>(nb::cast<nb::ndarray<float, nb::ndim<1>>>(arrays["background"]).shape(0));
  s.positions = find<float>(arrays, "positions");
  s.colors = find<float>(arrays, "colors");
  s.radii = find<float>(arrays, "radii");
  s.opacities = find<float>(arrays, "opacities");
  s.background = find<float>(arrays, "background");
  return s;
}

Outputs make_outputs(const nb::kwargs& arrays) {
  Outputs o{};
  o.color = find<float>(arrays, "color");
  o.alpha = find<float>(arrays, "alpha");
  o.depth = find<float>(arrays, "depth");
  o.info = find<float>(arrays, "info");
  o.ids = find<int32_t>(arrays, "ids");
  o.weights = find<float>(arrays, "weights");
  o.hits = find<int32_t>(arrays, "hits");
  o.blend = find<float>(arrays, "blend");
  o.stop = find<int32_t>(arrays, "stop");
  return o;
}

Upstream make_upstream(const nb::kwargs& arrays) {
  Upstream u{};
  u.color = find<float>(arrays, "color");
  u.info = find<float>(arrays, "info");
  u.blend = find<float>(arrays, "blend");
  u.stop = find<int32_t>(arrays, "stop");
  u.ids = find<int32_t>(arrays, "ids");
  u.d_color = find<float>(arrays, "d_color");
  u.d_alpha = find<float>(arrays, "d_alpha");
  u.d_depth = find<float>(arrays, "d_depth");
  return u;
}

Gradients make_gradients(const nb::kwargs& arrays) {
  Gradients g{};
  g.positions = find<float>(arrays, "to_positions");
  g.colors = find<float>(arrays, "to_colors");
  g.radii = find<float>(arrays, "to_radii");
  g.opacities = find<float>(arrays, "to_opacities");
  g.background = find<float>(arrays, "to_background");
  g.touched = find<int32_t>(arrays, "touched");
  g.camera = find<double>(arrays, "to_camera");
  return g;
}

cudaStream_t stream_of(std::uintptr_t handle) { return reinterpret_cast<cudaStream_t>(handle); }

CudaStages forward(CudaSession& session, std::uintptr_t stream, CudaKept& kept, const std::vector<Camera>& cameras,
                   const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(arrays);
  const Outputs outputs = make_outputs(arrays);
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {cuda_forward(cameras, settings, scene, outputs, kept.pass, session.workspace, stream_of(stream))};
}

CudaStages backward(CudaSession& session, std::uintptr_t stream, const CudaKept& kept,
                    const std::vector<Camera>& cameras, const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(session.device);
  return {
      cuda_backward(cameras, settings, scene, upstream, gradients, kept.pass, session.workspace, stream_of(stream))};
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_spheres(nb::module_& m) {
  using spheres::CudaKept;
  using spheres::CudaSession;
  using spheres::CudaStages;
  nb::class_<CudaSession>(m, "SphereCudaSession")
      .def(
          "__init__",
          [](CudaSession* self, int device) {
            const DeviceGuard guard(device);
            new (self) CudaSession{device, {}};
          },
          "device"_a)
      .def(
          "set_pair_limit", [](CudaSession& s, std::size_t limit) { s.workspace.pair_limit = limit; }, "limit"_a,
          "More (tile, sphere) pairs than this are not listed; drawing is slower then, but needs less memory.");
  nb::class_<CudaKept>(m, "SphereCudaPass").def(nb::init<>()).def_prop_ro("bytes", [](const CudaKept& k) {
    return k.pass.bytes();
  });
  nb::class_<CudaStages>(m, "SphereCudaStages")
      .def(
          "milliseconds", [](const CudaStages& s) { return s.timer.milliseconds(); },
          "(stage, milliseconds) of a call; empty while the device is still at work on it.");
  m.def("sphere_cuda_forward", &spheres::forward, "session"_a, "stream"_a, "state"_a, "cameras"_a, "settings"_a,
        "arrays"_a);
  m.def("sphere_cuda_backward", &spheres::backward, "session"_a, "stream"_a, "state"_a, "cameras"_a, "settings"_a,
        "arrays"_a);
  m.def("device_system_allocations", &device_system_allocations);
  m.def("device_bytes", &device_bytes, "device"_a);
  m.def(
      "device_trim",
      [](int device) {
        nb::gil_scoped_release unlocked;
        const DeviceGuard guard(device);
        device_trim();
      },
      "device"_a);
  m.def(
      "pin_host",
      [](std::uintptr_t address, std::size_t bytes, int device) {
        const DeviceGuard guard(device);
        return pin_host(reinterpret_cast<void*>(address), bytes);
      },
      "address"_a, "bytes"_a, "device"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "unpin_host",
      [](std::uintptr_t address, int device) {
        const DeviceGuard guard(device);
        unpin_host(reinterpret_cast<void*>(address));
      },
      "address"_a, "device"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace lumigrad
