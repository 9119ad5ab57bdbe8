// The Python module _emulation: the engines for CUDA devices, on the emulation.
#include <nanobind/nanobind.h>

#include "common/room.h"
#include "common/threads.h"

#include "emulation/approximate.h"
#include "emulation/runtime.h"
#include "emulator.h"
#include "streams.h"

namespace lumigrad {
void bind_cuda_spheres(nanobind::module_& module);
void bind_cuda_gaussians(nanobind::module_& module);
void bind_cuda_meshes(nanobind::module_& module);
void bind_cuda_density(nanobind::module_& module);
void bind_cuda_training(nanobind::module_& module);
void bind_cuda_serving(nanobind::module_& module);
void bind_cuda_resident(nanobind::module_& module);
}  // namespace lumigrad

NB_MODULE(_emulation, m) {
  lumigrad::bind_cuda_spheres(m);
  lumigrad::bind_cuda_gaussians(m);
  lumigrad::bind_cuda_meshes(m);
  lumigrad::bind_cuda_density(m);
  lumigrad::bind_cuda_training(m);
  lumigrad::bind_cuda_serving(m);
  lumigrad::bind_cuda_resident(m);
  m.def("set_seed", &lumigrad::emulation::set_seed);
  m.def("set_workers", &lumigrad::emulation::set_workers);
  m.def("set_deferred", &lumigrad::emulation::set_deferred);
  m.def("take_waits", &lumigrad::emulation::take_waits);
  m.def("take_operations", &lumigrad::emulation::take_operations);
  m.def("take_idle_waits", &lumigrad::emulation::take_idle_waits);
  m.def("set_error_seed", &lumigrad::emulation::set_error_seed);
  m.def("set_stubbed", &lumigrad::emulation::set_stubbed);
  m.def("synchronize", [] { cudaDeviceSynchronize(); });
  m.def("set_stopping", [](bool stopping) {
    static lumigrad::StopRequest made;
    made.make();
    lumigrad::heed(stopping ? &made : nullptr);
  });
  m.def("limit_memory", [](std::int64_t limit) {
    static lumigrad::MemoryRoom room(0);
    room = lumigrad::MemoryRoom(limit);
    lumigrad::limit_memory(limit < 0 ? nullptr : &room);
  });
  m.def("fail_allocations", &lumigrad::emulation::fail_allocations);
}
