// Python bindings of the sphere engine on CUDA devices. The Python package checks every argument before the call;
// cameras and settings are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/cuda/binding.h"
#include "common/cuda/memory.h"
#include "spheres/bind_arrays.h"
#include "spheres/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

LG_BEGIN_ENGINE(spheres)

// The forward state for a backward pass.
struct CudaKept {
  CudaPass pass;
};

namespace {

using Session = CudaSession<CudaWorkspace>;

CudaStages forward(Session& session, std::uintptr_t stream, CudaKept& kept, const std::vector<Camera>& cameras,
                   const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(arrays);
  const Outputs outputs = make_outputs(arrays);
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaStages {
    return {cuda_forward(cameras, settings, scene, outputs, kept.pass, session.workspace, on)};
  });
}

CudaStages backward(Session& session, std::uintptr_t stream, const CudaKept& kept, const std::vector<Camera>& cameras,
                    const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaStages {
    return {cuda_backward(cameras, settings, scene, upstream, gradients, kept.pass, session.workspace, on)};
  });
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_spheres(nb::module_& m) {
  using spheres::CudaKept;
  bind_session<spheres::CudaWorkspace>(m, "SphereCudaSession")
      .def(
          "set_pair_limit", [](spheres::Session& s, std::size_t limit) { s.workspace.pair_limit = limit; }, "limit"_a,
          "More (tile, sphere) pairs than this are not listed; drawing is slower then, but needs less memory.");
  nb::class_<CudaKept>(m, "SphereCudaPass").def(nb::init<>()).def_prop_ro("bytes", [](const CudaKept& k) {
    return k.pass.bytes();
  });
  nb::class_<CudaStages>(m, "CudaStages")
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
