// Facts that CUDA's runtime reports about this machine. No context is created, so no memory of any device is taken.
#ifdef LUMIGRAD_CUDA
#include <cuda_runtime.h>
#endif
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

namespace nb = nanobind;

namespace lumigrad {
namespace {

struct Gpu {
  std::string name;
  int major, minor;  // Compute capability.
};

// Versions are 1000 * major + 10 * minor.
struct CudaProbe {
  int driver = 0;     // The newest CUDA that the driver supports; 0 without a driver.
  int runtime = 0;    // The CUDA with which the kernels were built; 0 without kernels.
  std::string error;  // Why devices cannot be listed; empty if they can.
  std::vector<Gpu> gpus;
};

CudaProbe cuda_probe() {
  CudaProbe probe;
#ifdef LUMIGRAD_CUDA
  cudaDriverGetVersion(&probe.driver);
  cudaRuntimeGetVersion(&probe.runtime);
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int i = 0; status == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties;
    status = cudaGetDeviceProperties(&properties, i);
    if (status == cudaSuccess) probe.gpus.push_back({properties.name, properties.major, properties.minor});
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    probe.error = std::string(cudaGetErrorString(status)) + " (" + cudaGetErrorName(status) + ")";
  }
#endif
  return probe;
}

}  // namespace

void bind_probe(nb::module_& m) {
  nb::class_<Gpu>(m, "Gpu")
      .def_ro("name", &Gpu::name)
      .def_prop_ro(
          "capability", [](const Gpu& gpu) { return nb::make_tuple(gpu.major, gpu.minor); },
          nb::sig("def capability(self) -> tuple[int, int]"));
  nb::class_<CudaProbe>(m, "CudaProbe")
      .def_ro("driver", &CudaProbe::driver)
      .def_ro("runtime", &CudaProbe::runtime)
      .def_ro("error", &CudaProbe::error)
      .def_ro("gpus", &CudaProbe::gpus);
  m.def("cuda_probe", &cuda_probe, "The driver, the runtime and the GPUs that CUDA finds.");
  // Architectures in CMake's notation, separated by commas: "80,90-real,120-virtual"; empty without CUDA kernels.
  m.attr("CUDA_ARCHITECTURES") = LUMIGRAD_CUDA_ARCHITECTURES;
}

}  // namespace lumigrad
