// Parts shared by the Python bindings of all engines on CUDA devices.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "common/cuda/launch.h"
#include "common/cuda/timer.h"
#include "common/math/number.h"

// One namespace per build, so that nanobind does not confuse the emulation's classes with those of a GPU.
LG_BEGIN

// The times of a call's stages.
struct CudaStages {
  DeviceTimer timer;
};

// A device, and the state that the calls of one engine share on it.
template <class Workspace>
struct CudaSession {
  int device;
  Workspace workspace;
};

template <class Workspace>
nanobind::class_<CudaSession<Workspace>> bind_session(nanobind::module_& m, const char* name) {
  using Session = CudaSession<Workspace>;
  return nanobind::class_<Session>(m, name).def(
      "__init__",
      [](Session* self, int device) {
        const DeviceGuard guard(device);
        new (self) Session{device, {}};
      },
      nanobind::arg("device"));
}

// Calls run(stream) on a device, without the GIL.
template <class Run>
auto on_device(int device, std::uintptr_t stream, const Run& run) {
  nanobind::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  return run(reinterpret_cast<cudaStream_t>(stream));
}

LG_END
