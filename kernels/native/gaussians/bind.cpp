// Python bindings of the Gaussian engine. The Python package checks every argument before the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <string>

#include "gaussians/bind_arrays.h"
#include "gaussians/cpu/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace gaussians;

template <std::size_t kCount>
void assign(float (&to)[kCount], const std::array<double, kCount>& from) {
  for (std::size_t i = 0; i < kCount; ++i) to[i] = static_cast<float>(from[i]);
}

Model model_named(const std::string& name) {
  if (name == "pinhole") return Model::pinhole;
  if (name == "orthographic") return Model::orthographic;
  if (name == "fisheye") return Model::fisheye;
  throw std::invalid_argument("model '" + name + "' is none of pinhole, orthographic, fisheye");
}

View make_view(int width, int height, int scene, const std::string& model, const std::array<double, 4>& intrinsics,
               const std::array<double, 4>& limits, bool distorted, const std::array<double, 8>& distortion,
               double max_radius_squared, bool projected, const std::array<double, 12>& projection) {
  View v{};
  v.width = width;
  v.height = height;
  v.scene = scene;
  v.model = model_named(model);
  v.fx = static_cast<float>(intrinsics[0]);
  v.fy = static_cast<float>(intrinsics[1]);
  v.cx = static_cast<float>(intrinsics[2]);
  v.cy = static_cast<float>(intrinsics[3]);
  v.min_u = static_cast<float>(limits[0]);
  v.max_u = static_cast<float>(limits[1]);
  v.min_v = static_cast<float>(limits[2]);
  v.max_v = static_cast<float>(limits[3]);
  v.distorted = distorted;
  assign(v.distortion, distortion);
  v.max_radius_squared = static_cast<float>(max_radius_squared);
  v.projected = projected;
  assign(v.projection, projection);
  return v;
}

using PoseArray = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

Views make_views(const std::vector<View>& views, const std::vector<int32_t>& slice_begins, const PoseArray& poses) {
  static_assert(sizeof(Pose) == kPoseFloats * sizeof(float));
  const std::size_t slices = slice_begins.size() - 1;
  if (slice_begins.empty() || poses.shape(0) != views.size() || poses.shape(1) != slices ||
      poses.shape(2) != kPoseFloats) {
    throw std::invalid_argument("poses must be [views, slices, 15], and slice_begins [slices + 1]");
  }
  Views result{views, slice_begins, std::vector<Pose>(views.size() * slices)};
  std::memcpy(static_cast<void*>(result.poses.data()), poses.data(), poses.nbytes());
  return result;
}

Settings make_settings(bool inria, bool fork_gradients, bool antialiased, int sh_degree, bool deterministic,
                       double alpha_min, double alpha_max, double transmittance_min, double eps2d, double near,
                       double far, double radius_clip, double pixel_center, double scale_modifier) {
  Settings s{};
  s.inria = inria;
  s.fork_gradients = fork_gradients;
  s.antialiased = antialiased;
  s.sh_degree = sh_degree;
  s.deterministic = deterministic;
  s.alpha_min = static_cast<float>(alpha_min);
  s.alpha_max = static_cast<float>(alpha_max);
  s.transmittance_min = static_cast<float>(transmittance_min);
  s.eps2d = static_cast<float>(eps2d);
  s.near = static_cast<float>(near);
  s.far = static_cast<float>(far);
  s.radius_clip = static_cast<float>(radius_clip);
  s.pixel_center = static_cast<float>(pixel_center);
  s.scale_modifier = static_cast<float>(scale_modifier);
  return s;
}

void forward_view(Workspace& workspace, Pass& pass, const Views& views, int view, const Settings& settings,
                  const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Outputs outputs = make_outputs(arrays);
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).forward_view(views.views.data(), view, settings, scene, outputs, pass, workspace);
}

void blend_backward(Workspace& workspace, Pass& pass, const Views& views, int view, const Settings& settings,
                    const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa())
      .blend_backward(views.views.data(), view, settings, scene, upstream, gradients, pass, workspace);
}

void project_backward(Workspace& workspace, Pass& pass, const Views& views, const Settings& settings,
                      const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa())
      .project_backward(views.views.data(), views.count(), settings, scene, upstream, gradients, pass, workspace);
}

void bind_settings(nb::module_& m) {
  nb::class_<View>(m, "GaussianView");
  nb::class_<Views>(m, "GaussianViews").def("__len__", &Views::count);
  nb::class_<Settings>(m, "GaussianSettings");
  m.attr("GAUSSIAN_POSE_FLOATS") = kPoseFloats;
  m.def("make_gaussian_view", &make_view, nb::kw_only(), "width"_a, "height"_a, "scene"_a, "model"_a, "intrinsics"_a,
        "limits"_a, "distorted"_a, "distortion"_a, "max_radius_squared"_a, "projected"_a, "projection"_a);
  m.def("make_gaussian_views", &make_views, "views"_a, "slice_begins"_a, "poses"_a);
  m.def("make_gaussian_settings", &make_settings, nb::kw_only(), "inria"_a, "fork_gradients"_a, "antialiased"_a,
        "sh_degree"_a, "deterministic"_a, "alpha_min"_a, "alpha_max"_a, "transmittance_min"_a, "eps2d"_a, "near"_a,
        "far"_a, "radius_clip"_a, "pixel_center"_a, "scale_modifier"_a);
}

}  // namespace

void bind_gaussians(nb::module_& m) {
  bind_settings(m);
  nb::class_<Pass>(m, "GaussianPass")
      .def(nb::init<>())
      .def("prepare", &Pass::prepare, "count"_a, "retained"_a)
      .def_prop_ro("bytes", &Pass::bytes);
  nb::class_<Workspace>(m, "GaussianWorkspace")
      .def(nb::init<>())
      .def_prop_ro("bytes", &Workspace::bytes)
      .def_prop_ro("milliseconds", [](const Workspace& w) {
        return std::array<double, kMaxStages>{w.milliseconds[0], w.milliseconds[1], w.milliseconds[2],
                                              w.milliseconds[3], w.milliseconds[4], w.milliseconds[5]};
      });
  nb::list stages;
  for (const char* name : kStageNames) stages.append(name);
  m.attr("GAUSSIAN_STAGES") = nb::tuple(stages);
  m.def("gaussian_forward_view", &forward_view, "workspace"_a, "state"_a, "views"_a, "view"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_blend_backward", &blend_backward, "workspace"_a, "state"_a, "views"_a, "view"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_project_backward", &project_backward, "workspace"_a, "state"_a, "views"_a, "settings"_a, "arrays"_a);
}

}  // namespace lumigrad
