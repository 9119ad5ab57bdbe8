// The Python module _emulation_checks: the small kernels, and the switches of the emulation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>

#include "checks/kernels.h"
#include "common/cuda/memory.h"
#include "common/cuda/sort.h"
#include "common/cuda/timer.h"
#include "emulation/approximate.h"
#include "emulator.h"

namespace nb = nanobind;
namespace checks = lumigrad::checks;

namespace {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

using Word = std::uint32_t;

// Without values it sorts the numbers from 0 on.
void sort_pairs(Array<Word> keys, std::optional<Array<Word>> values, Array<Word> keys_out, Array<Word> values_out,
                int begin, int end) {
  lumigrad::sort_pairs(keys.data(), keys_out.data(), values ? values->data() : nullptr, values_out.data(),
                       static_cast<int>(keys.size()), begin, end, nullptr);
}

// Allocates blocks of these sizes and frees them.
void use_memory(const std::vector<std::size_t>& sizes) {
  std::vector<lumigrad::DeviceBuffer<char>> buffers;
  for (std::size_t size : sizes) buffers.emplace_back(size, nullptr);
}

void bind_kernels(nb::module_& m) {
  m.def("sum", [](Array<float> values, Array<float> total) {
    checks::sum(values.data(), static_cast<int>(values.size()), total.data());
  });
  m.def("scan", [](Array<int> values, Array<int> sums) { checks::scan(values.data(), sums.data()); });
  m.def("compact", [](Array<int> values, Array<int> kept, Array<unsigned> count) {
    checks::compact(values.data(), static_cast<int>(values.size()), kept.data(), count.data());
  });
  m.def("warp_operations", [](Array<int> out) { checks::warp_operations(out.data()); });
  m.def("votes", [](Array<int> out) { checks::votes(out.data()); });
  m.def("atomics", [](Array<int> ints, Array<std::uint64_t> wide, Array<float> real, Array<double> precise) {
    checks::atomics(ints.data(), reinterpret_cast<unsigned long long*>(wide.data()), real.data(), precise.data());
  });
  m.def("race", [](Array<int> out) { checks::race(out.data()); });
  m.def("missed_barrier", &checks::missed_barrier);
  m.def("two_barriers", &checks::two_barriers);
  m.def("missed_shuffle", [](Array<int> out) { checks::missed_shuffle(out.data()); });
  m.def("absent_lane", [](Array<int> out) { checks::absent_lane(out.data()); });
  m.def("foreign_mask", &checks::foreign_mask);
  m.def("out_of_range", [](Array<int> out, int index) { checks::out_of_range(out.data(), index); });
  m.def("dynamic", [](Array<int> out, int index) { checks::dynamic(out.data(), index); });
  m.def("undefined", [](Array<float> out, bool write) { checks::undefined(out.data(), write); });
  m.def("large_frame", [](Array<int> out) { checks::large_frame(out.data()); });
  m.def("shape", &checks::shape);
}

void bind_faults(nb::module_& m) {
  m.def("copy_twice_from_one_place", &checks::copy_twice_from_one_place);
  m.def("read_count", &checks::read_count);
  m.def("free_during_copy", &checks::free_during_copy);
  m.def("read_from_other_stream", &checks::read_from_other_stream);
  m.def("give_back_to_other_stream", &checks::give_back_to_other_stream);
  m.def("pass_local_array", &checks::pass_local_array);
  m.def("approximate", [](Array<float> values, Array<float> out) {
    checks::approximate(values.data(), static_cast<int>(values.size()), out.data());
  });
}

}  // namespace

NB_MODULE(_emulation_checks, m) {
  bind_kernels(m);
  bind_faults(m);
  m.def("sort_pairs", &sort_pairs, nb::arg("keys"), nb::arg("values").none(), nb::arg("keys_out"),
        nb::arg("values_out"), nb::arg("begin"), nb::arg("end"));
  m.def("exclusive_sum", [](Array<Word> values, Array<Word> sums) {
    lumigrad::exclusive_sum(values.data(), sums.data(), static_cast<int>(values.size()), nullptr);
  });
  m.def("use_memory", &use_memory);
  m.def("system_allocations", &lumigrad::device_system_allocations);
  m.def("held_bytes", [] { return lumigrad::device_bytes(0); });
  m.def("trim", &lumigrad::device_trim);
  m.def("fail_allocations", &lumigrad::emulation::fail_allocations);
  m.def("time_stages", [](const std::vector<std::string>& names) {
    lumigrad::DeviceTimer timer(nullptr);
    for (const std::string& name : names) timer.mark(name.c_str());
    return timer.milliseconds();
  });
  m.def("set_deferred", &lumigrad::emulation::set_deferred);
  m.def("set_error_seed", &lumigrad::emulation::set_error_seed);
  m.def("set_seed", &lumigrad::emulation::set_seed);
  m.def("set_workers", &lumigrad::emulation::set_workers);
}
