// The Python module lumigrad.kernels._native.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/isa.h"
#include "common/levels.h"
#include "common/pool.h"
#include "common/room.h"
#include "common/threads.h"

namespace nb = nanobind;

namespace lumigrad {
void bind_probe(nb::module_& module);
void bind_spheres(nb::module_& module);
void bind_gaussians(nb::module_& module);
void bind_meshes(nb::module_& module);
void bind_density(nb::module_& module);
void bind_training(nb::module_& module);
void bind_resident(nb::module_& module);
void bind_serving(nb::module_& module);
void bind_serving_renders(nb::module_& module);
void bind_serving_passes(nb::module_& module);
void bind_serving_accounts(nb::module_& module);
void bind_serving_calls(nb::module_& module);
void bind_serving_frames(nb::module_& module);
void bind_serving_progress(nb::module_& module);
void bind_serving_records(nb::module_& module);
void bind_cuda_spheres(nb::module_& module);
void bind_cuda_gaussians(nb::module_& module);
void bind_cuda_meshes(nb::module_& module);
void bind_cuda_density(nb::module_& module);
void bind_cuda_training(nb::module_& module);
void bind_cuda_serving(nb::module_& module);
void bind_cuda_resident(nb::module_& module);
}  // namespace lumigrad

namespace {

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (lumigrad::Isa isa : lumigrad::available_isas()) names.push_back(lumigrad::isa_name(isa));
  return names;
}

// A context manager within which the loops of this thread heed no request.
struct Unstoppable {
  const lumigrad::StopRequest* request = nullptr;
};

void bind_room(nb::module_& m) {
  using lumigrad::MemoryRoom;
  nb::exception<lumigrad::NoRoom>(m, "NoRoom", PyExc_MemoryError);
  nb::class_<MemoryRoom>(m, "MemoryRoom")
      .def(nb::init<std::int64_t>(), nb::arg("limit"))
      .def_prop_ro("refused", &MemoryRoom::refused)
      .def(
          "__enter__",
          [](MemoryRoom& room) {
            if (lumigrad::memory_room() != nullptr) throw std::logic_error("this thread's memory is limited already");
            lumigrad::limit_memory(&room);
            return &room;
          },
          nb::rv_policy::reference)
      .def("__exit__", [](const MemoryRoom&, const nb::args&) { lumigrad::limit_memory(nullptr); });
}

// The Python package checks that there are as many levels as values.
void write_levels(const nb::ndarray<const float, nb::c_contig, nb::device::cpu>& values,
                  const nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>& levels) {
  nb::gil_scoped_release unlocked;
  lumigrad::convert_levels(lumigrad::current_isa(), values.data(), values.size(), levels.data());
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("available_isas", &isa_names, "Instruction sets built in and runnable here, slowest first.");
  m.def("current_isa", [] { return lumigrad::isa_name(lumigrad::current_isa()); });
  m.def("set_isa", [](const std::string& name) { lumigrad::set_isa(lumigrad::parse_isa(name)); });
  m.def("write_levels", &write_levels, nb::arg("values").noconvert(), nb::arg("levels").noconvert(),
        nb::sig("def write_levels(values: object, levels: object) -> None"));
  nb::exception<lumigrad::Stopped>(m, "Stopped");
  nb::class_<lumigrad::StopRequest>(m, "StopRequest")
      .def(nb::init<>())
      .def("make", &lumigrad::StopRequest::make)
      .def_prop_ro("idle_seconds", &lumigrad::StopRequest::idle_seconds)
      .def("__enter__",
           [](const lumigrad::StopRequest& request) {
             const lumigrad::StopRequest* before = lumigrad::heed(&request);
             if (before == nullptr) return;
             lumigrad::heed(before);
             throw std::logic_error("this thread heeds another request already");
           })
      .def("__exit__", [](const lumigrad::StopRequest&, const nb::args&) { lumigrad::heed(nullptr); });
  nb::class_<Unstoppable>(m, "Unstoppable")
      .def(nb::init<>())
      .def("__enter__", [](Unstoppable& self) { self.request = lumigrad::heed(nullptr); })
      .def("__exit__", [](const Unstoppable& self, const nb::args&) { lumigrad::heed(self.request); });
  m.def("check_stop", &lumigrad::check_stop);
  bind_room(m);
  m.def("thread_count", &lumigrad::thread_count);
  m.def("set_thread_count", &lumigrad::set_thread_count);
  m.def("pool_system_allocations", &lumigrad::pool_system_allocations);
  m.def("pool_bytes", &lumigrad::pool_bytes);
  m.def("pool_trim", &lumigrad::pool_trim);
  lumigrad::bind_probe(m);
  lumigrad::bind_spheres(m);
  lumigrad::bind_gaussians(m);
  lumigrad::bind_meshes(m);
  lumigrad::bind_density(m);
  lumigrad::bind_training(m);
  lumigrad::bind_serving(m);
  lumigrad::bind_serving_renders(m);
  lumigrad::bind_serving_passes(m);
  lumigrad::bind_serving_accounts(m);
  lumigrad::bind_serving_records(m);
  lumigrad::bind_serving_progress(m);
  lumigrad::bind_serving_calls(m);
  lumigrad::bind_serving_frames(m);
  lumigrad::bind_resident(m);
#ifdef LUMIGRAD_CUDA
  lumigrad::bind_cuda_spheres(m);
  lumigrad::bind_cuda_gaussians(m);
  lumigrad::bind_cuda_meshes(m);
  lumigrad::bind_cuda_density(m);
  lumigrad::bind_cuda_training(m);
  lumigrad::bind_cuda_serving(m);
  lumigrad::bind_cuda_resident(m);
  m.attr("CUDA_BUILT") = true;
#else
  m.attr("CUDA_BUILT") = false;
#endif
}
