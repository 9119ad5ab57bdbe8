// Python bindings of the renders of prepared requests on CUDA devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstdint>

#include "serving/cuda/render.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {

void bind_cuda_serving(nb::module_& m) {
  m.def(
      "cuda_renderer",
      [](int device, std::uintptr_t kernels, std::uintptr_t copies) {
        return serving::make_cuda_renderer(device, reinterpret_cast<cudaStream_t>(kernels),
                                           reinterpret_cast<cudaStream_t>(copies));
      },
      "device"_a, "kernels"_a, "copies"_a, "A renderer whose kernels and copies use these streams.");
}

}  // namespace lumigrad
