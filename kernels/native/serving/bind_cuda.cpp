// Python bindings of the engines that answer prepared requests on CUDA devices.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "serving/cuda/jpeg.h"
#include "serving/cuda/passes.h"
#include "serving/cuda/render.h"
#include "serving/passes/bound_pass.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

#ifdef LUMIGRAD_EMULATION
constexpr int kDeviceType = nb::device::cpu::value;
#else
constexpr int kDeviceType = nb::device::cuda::value;
#endif

Streams streams_of(int device, std::uintptr_t kernels, std::uintptr_t copies) {
  return {device, reinterpret_cast<cudaStream_t>(kernels), reinterpret_cast<cudaStream_t>(copies)};
}

nb::tuple parts_of(const BoundPass& bound, int device) {
  auto pass = std::static_pointer_cast<CudaRetained>(bound.pass);
  nb::dict images;
  for (std::size_t i = 0; i < pass->images.size(); ++i) {
    images[pass->kind->images[i].name.c_str()] = nb::ndarray<nb::pytorch, float, nb::ndim<1>>(
        pass->images[i].data(), {pass->images[i].size()}, owner_of(bound), {}, nb::dtype<float>(), kDeviceType, device);
  }
  return nb::make_tuple(std::shared_ptr<gaussians::CudaKept>(pass, &pass->kept), images);
}

using Picture = nb::ndarray<const std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;

nb::bytes encode_jpeg(JpegEncoder& encoder, const Picture& levels, int quality, bool are_colors_halved) {
  std::string file;
  {
    nb::gil_scoped_release unlocked;
    file = encoder.encode(levels.data(), static_cast<int>(levels.shape(0)), static_cast<int>(levels.shape(1)), quality,
                          are_colors_halved);
  }
  return nb::bytes(file.data(), file.size());
}

}  // namespace

void bind_cuda_serving(nb::module_& m) {
  m.def(
      "cuda_renderer",
      [](int device, std::uintptr_t kernels, std::uintptr_t copies) {
        return make_cuda_renderer(streams_of(device, kernels, copies));
      },
      "device"_a, "kernels"_a, "copies"_a, "A renderer whose kernels and copies use these streams.");
  m.def(
      "cuda_distances",
      [](int device, std::uintptr_t kernels, std::uintptr_t copies) {
        return make_cuda_distances(streams_of(device, kernels, copies));
      },
      "device"_a, "kernels"_a, "copies"_a, "Answers prepared queries on these streams.");
  m.def(
      "cuda_passes",
      [](int device, std::uintptr_t kernels, std::uintptr_t copies) {
        return make_cuda_passes(streams_of(device, kernels, copies));
      },
      "device"_a, "kernels"_a, "copies"_a, "Computes prepared passes on these streams.");
  m.def("cuda_pass_parts", &parts_of, "state"_a, "device"_a,
        "What `State` has of a state on a device: the kernels' part, and the images by name.");
  nb::class_<JpegEncoder>(m, "JpegEncoder")
      .def(nb::init<const std::string&, int>(), "path"_a, "device"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Encodes with the nvJPEG at a path.")
      .def("encode", &encode_jpeg, "levels"_a, "quality"_a, "are_colors_halved"_a,
           "The file of a picture, uint8 [H, W, 3]. Fails only for this picture.");
}

}  // namespace lumigrad
