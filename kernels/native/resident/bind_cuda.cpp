// Python bindings of resident trainings on CUDA devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstdint>

#include "resident/cuda/machine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {

void bind_cuda_resident(nb::module_& m) {
  m.def(
      "cuda_step_machine",
      [](int device, std::uintptr_t stream) {
        return resident::make_cuda_machine(device, reinterpret_cast<cudaStream_t>(stream));
      },
      "device"_a, "stream"_a, "What makes steps of trainings, with kernels on this stream.");
}

}  // namespace lumigrad
