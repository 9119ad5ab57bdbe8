// Python bindings of training on CUDA devices. The Python package checks every argument before the call; settings are
// those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "common/cuda/binding.h"
#include "training/bind_arrays.h"
#include "training/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

LG_BEGIN_ENGINE(training)

namespace {

CudaStages adam(int device, std::uintptr_t stream, const nb::list& groups, const AdamSettings& settings,
                const nb::object& sums) {
  const std::vector<AdamGroup> made = make_adam_groups(groups);
  double* to = CallArray<double>(sums).data();
  return on_device(device, stream, [&](cudaStream_t on) -> CudaStages {
    return {cuda_adam(made.data(), static_cast<int>(made.size()), settings, to, on)};
  });
}

CudaStages image_loss(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const ImageLoss loss = make_image_loss(arrays);
  double* values = find<double>(arrays, "values");
  return on_device(device, stream, [&](cudaStream_t on) -> CudaStages { return {cuda_image_loss(loss, values, on)}; });
}

CudaStages mean(int device, std::uintptr_t stream, float slope, const nb::object& to, const nb::kwargs& arrays) {
  const Mean values = make_mean(arrays, slope);
  double* result = CallArray<double>(to).data();
  return on_device(device, stream, [&](cudaStream_t on) -> CudaStages { return {cuda_mean(values, result, on)}; });
}

CudaStages plane_loss(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const std::vector<PlaneLoss> views = make_plane_losses(arrays);
  double* values = find<double>(arrays, "values");
  return on_device(device, stream, [&](cudaStream_t on) -> CudaStages { return {cuda_plane_loss(views, values, on)}; });
}

void expose(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const std::vector<Exposure> views = make_exposures(arrays, "exposed");
  on_device(device, stream, [&](cudaStream_t on) {
    for (const Exposure& view : views) cuda_expose(view, on);
  });
}

void expose_backward(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const std::vector<Exposure> views = make_exposures(arrays, "gradient");
  float* to = find<float>(arrays, "to_matrices");
  on_device(device, stream, [&](cudaStream_t on) {
    for (const Exposure& view : views) {
      cuda_expose_backward(view, to, on);
      to += kExposure;
    }
  });
}

void center_exposures(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const CallArray<float> matrices(arrays["matrices"]);
  const auto count = static_cast<int64_t>(matrices.shape(0));
  on_device(device, stream, [&](cudaStream_t on) { cuda_center_exposures(matrices.data(), count, on); });
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_training(nb::module_& m) {
  m.def("training_cuda_adam", &training::adam, "device"_a, "stream"_a, "groups"_a, "settings"_a, "sums"_a);
  m.def("training_cuda_plane_loss", &training::plane_loss, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_expose", &training::expose, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_expose_backward", &training::expose_backward, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_center_exposures", &training::center_exposures, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_mean", &training::mean, "device"_a, "stream"_a, "slope"_a, "to"_a, "arrays"_a);
  m.def("training_cuda_image_loss", &training::image_loss, "device"_a, "stream"_a, "arrays"_a);
}

}  // namespace lumigrad
