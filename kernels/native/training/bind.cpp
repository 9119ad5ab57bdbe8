// Python bindings of training on the CPU. The Python package checks every argument before the call. Timed functions
// return their duration in milliseconds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "training/bind_arrays.h"
#include "training/cpu/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace training;

AdamSettings make_adam_settings(double first_weight, double second_decay, double second_weight, double root_correction,
                                double epsilon, double gradient_scale) {
  return {static_cast<float>(first_weight),    static_cast<float>(second_decay), static_cast<float>(second_weight),
          static_cast<float>(root_correction), static_cast<float>(epsilon),      static_cast<float>(gradient_scale)};
}

double adam(Workspace& workspace, const nb::list& groups, const AdamSettings& settings, const nb::object& sums) {
  const std::vector<AdamGroup> made = make_adam_groups(groups);
  double* to = CallArray<double>(sums).data();
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).adam(made.data(), static_cast<int>(made.size()), settings, to, workspace);
  return workspace.milliseconds[0];
}

double image_loss(Workspace& workspace, const nb::kwargs& arrays) {
  const ImageLoss loss = make_image_loss(arrays);
  double* values = find<double>(arrays, "values");
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).image_loss(loss, values, workspace);
  return workspace.milliseconds[0];
}

double mean(Workspace& workspace, float slope, const nb::object& to, const nb::kwargs& arrays) {
  const Mean values = make_mean(arrays, slope);
  double* result = CallArray<double>(to).data();
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).mean(values, result, workspace);
  return workspace.milliseconds[0];
}

double plane_loss(Workspace& workspace, const nb::kwargs& arrays) {
  const std::vector<PlaneLoss> views = make_plane_losses(arrays);
  double* values = find<double>(arrays, "values");
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).plane_loss(views.data(), static_cast<int>(views.size()), values, workspace);
  return workspace.milliseconds[0];
}

void expose(Workspace&, const nb::kwargs& arrays) {
  const std::vector<Exposure> views = make_exposures(arrays, "exposed");
  nb::gil_scoped_release unlocked;
  for (const Exposure& view : views) cpu_engine(current_isa()).expose(view);
}

void expose_backward(Workspace& workspace, const nb::kwargs& arrays) {
  const std::vector<Exposure> views = make_exposures(arrays, "gradient");
  float* to = find<float>(arrays, "to_matrices");
  nb::gil_scoped_release unlocked;
  for (const Exposure& view : views) {
    cpu_engine(current_isa()).expose_backward(view, to, workspace);
    to += kExposure;
  }
}

void center_exposures(Workspace&, const nb::kwargs& arrays) {
  const CallArray<float> matrices(arrays["matrices"]);
  cpu_engine(current_isa()).center_exposures(matrices.data(), static_cast<int64_t>(matrices.shape(0)));
}

void surface_normals(const nb::kwargs& arrays) {
  const std::vector<Surface> views = make_surfaces(arrays);
  float* to = find<float>(arrays, "normals");
  nb::gil_scoped_release unlocked;
  for (const Surface& view : views) {
    cpu_engine(current_isa()).surface_normals(view, to);
    to += int64_t{3} * view.height * view.width;
  }
}

void surface_backward(const nb::kwargs& arrays) {
  const std::vector<Surface> views = make_surfaces(arrays);
  const float* gradient = find<float>(arrays, "d_normals");
  float* to = find<float>(arrays, "to_depth");
  double* sums = find<double>(arrays, "sums");
  nb::gil_scoped_release unlocked;
  Workspace workspace;
  for (const Surface& view : views) {
    cpu_engine(current_isa()).surface_backward(view, gradient, to, false, sums, workspace);
    gradient += int64_t{3} * view.height * view.width;
    to += int64_t{1} * view.height * view.width;
    sums += kSurfaceSums;
  }
}

void normal_loss(Workspace& workspace, const nb::kwargs& arrays) {
  const NormalLoss loss = make_normal_loss(arrays);
  double* value = find<double>(arrays, "value");
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).normal_loss(loss, value, workspace);
}

}  // namespace

void bind_training(nb::module_& m) {
  nb::class_<Workspace>(m, "TrainingWorkspace").def(nb::init<>());
  nb::class_<AdamSettings>(m, "AdamSettings");
  m.attr("ADAM_SUMS") = static_cast<int>(kAdamSums);
  m.def("make_adam_settings", &make_adam_settings, nb::kw_only(), "first_weight"_a, "second_decay"_a, "second_weight"_a,
        "root_correction"_a, "epsilon"_a, "gradient_scale"_a);
  m.attr("LOSS_VALUES") = static_cast<int>(kLossValues);
  m.def("training_image_loss", &image_loss, "workspace"_a, "arrays"_a);
  m.def("training_adam", &adam, "workspace"_a, "groups"_a, "settings"_a, "sums"_a);
  m.def("training_plane_loss", &plane_loss, "workspace"_a, "arrays"_a);
  m.def("training_expose", &expose, "workspace"_a, "arrays"_a);
  m.def("training_expose_backward", &expose_backward, "workspace"_a, "arrays"_a);
  m.def("training_center_exposures", &center_exposures, "workspace"_a, "arrays"_a);
  m.attr("SURFACE_SUMS") = kSurfaceSums;
  m.def("training_surface_normals", &surface_normals, "arrays"_a);
  m.def("training_surface_backward", &surface_backward, "arrays"_a);
  m.def("training_normal_loss", &normal_loss, "workspace"_a, "arrays"_a);
  m.attr("PLANE_VALUES") = static_cast<int>(kPlaneValues);
  m.def("training_mean", &mean, "workspace"_a, "slope"_a, "to"_a, "arrays"_a);
}

}  // namespace lumigrad
