// Python bindings of training on CUDA devices. The Python package checks every argument before the call; settings are
// those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/cuda/launch.h"
#include "training/bind_arrays.h"
#include "training/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

// One namespace per build keeps the emulation's classes from being taken for those of a GPU.
LG_BEGIN_ENGINE(training)

// The times of a call's stages.
struct CudaStages {
  DeviceTimer timer;
};

namespace {

cudaStream_t stream_of(std::uintptr_t handle) { return reinterpret_cast<cudaStream_t>(handle); }

CudaStages adam(int device, std::uintptr_t stream, const nb::list& groups, const AdamSettings& settings,
                const nb::object& sums) {
  const std::vector<AdamGroup> made = make_adam_groups(groups);
  double* to = CallArray<double>(sums).data();
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  return {cuda_adam(made.data(), static_cast<int>(made.size()), settings, to, stream_of(stream))};
}

CudaStages image_loss(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const ImageLoss loss = make_image_loss(arrays);
  double* values = find<double>(arrays, "values");
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  return {cuda_image_loss(loss, values, stream_of(stream))};
}

CudaStages mean(int device, std::uintptr_t stream, float slope, const nb::object& to, const nb::kwargs& arrays) {
  const Mean values = make_mean(arrays, slope);
  double* result = CallArray<double>(to).data();
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  return {cuda_mean(values, result, stream_of(stream))};
}

CudaStages plane_loss(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const std::vector<PlaneLoss> views = make_plane_losses(arrays);
  double* values = find<double>(arrays, "values");
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  return {cuda_plane_loss(views, values, stream_of(stream))};
}

void expose(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const std::vector<Exposure> views = make_exposures(arrays, "exposed");
  const DeviceGuard guard(device);
  for (const Exposure& view : views) cuda_expose(view, stream_of(stream));
}

void expose_backward(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const std::vector<Exposure> views = make_exposures(arrays, "gradient");
  float* to = find<float>(arrays, "to_matrices");
  const DeviceGuard guard(device);
  for (const Exposure& view : views) {
    cuda_expose_backward(view, to, stream_of(stream));
    to += kExposure;
  }
}

void center_exposures(int device, std::uintptr_t stream, const nb::kwargs& arrays) {
  const CallArray<float> matrices(arrays["matrices"]);
  const DeviceGuard guard(device);
  cuda_center_exposures(matrices.data(), static_cast<int64_t>(matrices.shape(0)), stream_of(stream));
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_training(nb::module_& m) {
  using training::CudaStages;
  nb::class_<CudaStages>(m, "TrainingCudaStages")
      .def(
          "milliseconds", [](const CudaStages& s) { return s.timer.milliseconds(); },
          "(stage, milliseconds) of a call; empty while the device is still at work on it.");
  m.def("training_cuda_adam", &training::adam, "device"_a, "stream"_a, "groups"_a, "settings"_a, "sums"_a);
  m.def("training_cuda_plane_loss", &training::plane_loss, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_expose", &training::expose, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_expose_backward", &training::expose_backward, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_center_exposures", &training::center_exposures, "device"_a, "stream"_a, "arrays"_a);
  m.def("training_cuda_mean", &training::mean, "device"_a, "stream"_a, "slope"_a, "to"_a, "arrays"_a);
  m.def("training_cuda_image_loss", &training::image_loss, "device"_a, "stream"_a, "arrays"_a);
}

}  // namespace lumigrad
