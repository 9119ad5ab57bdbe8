// Python bindings of the Gaussian engine. The Python package checks every argument before the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "gaussians/bind_arrays.h"
#include "gaussians/cpu/engine.h"
#include "gaussians/cpu/lists/ids.h"
#include "gaussians/cpu/lists/visits.h"
#include "gaussians/cpu/packed.h"
#include "gaussians/sensor_pose.h"

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

template <class Enum>
Enum named(const std::string& name, const char* what, std::initializer_list<const char*> names) {
  int index = 0;
  for (const char* candidate : names) {
    if (name == candidate) return static_cast<Enum>(index);
    ++index;
  }
  throw std::invalid_argument(std::string(what) + " '" + name + "' is unknown");
}

template <std::size_t kCount>
void copy(double (&to)[kCount], const std::array<double, kCount>& from) {
  std::copy(from.begin(), from.end(), to);
}

Sensor make_sensor(const std::string& lens, const std::string& shutter, bool continuous, bool monotone,
                   bool inverse_reference, bool windshield, bool behind, const std::vector<double>& parameters,
                   const std::vector<double>& inverse_windshield, double limit, double distance_limit, double guess,
                   const std::array<double, 9>& rotation, const std::array<double, 3>& translation,
                   const std::array<double, 3>& axis, double angle, const std::array<double, 3>& motion, bool clockwise,
                   const std::array<double, 4>& field) {
  Sensor s{};
  s.lens = named<SensorLens>(lens, "lens", {"pinhole", "opencv", "orthographic", "fisheye", "ftheta", "lidar"});
  s.shutter = named<Shutter>(shutter, "shutter",
                             {"global", "top_to_bottom", "left_to_right", "bottom_to_top", "right_to_left"});
  s.continuous = continuous;
  s.monotone = monotone;
  s.inverse_reference = inverse_reference;
  s.windshield = windshield;
  s.behind = behind;
  if (parameters.size() != lens_parameter::kCount) throw std::invalid_argument("the lens has another size");
  std::copy(parameters.begin(), parameters.end(), s.parameters);
  if (inverse_windshield.size() != 2 * lens_parameter::kWindshield) {
    throw std::invalid_argument("the inverse windshield has another size");
  }
  std::copy(inverse_windshield.begin(), inverse_windshield.end(), s.inverse_windshield);
  s.limit = limit;
  s.distance_limit = distance_limit;
  s.guess = guess;
  copy(s.rotation, rotation);
  copy(s.translation, translation);
  copy(s.axis, axis);
  s.angle = angle;
  copy(s.motion, motion);
  s.clockwise = clockwise;
  s.azimuth = field[0];
  s.azimuth_span = field[1];
  s.elevation = field[2];
  s.elevation_span = field[3];
  return s;
}

using Rotation = std::array<double, 9>;
using NativePose = std::array<double, 12>;

Rotation rotation_near(const Rotation& matrix) {
  Rotation found;
  nearest_rotation(matrix.data(), found.data());
  return found;
}

std::pair<std::array<double, 3>, double> turn_of(const Rotation& start, const Rotation& end) {
  std::array<double, 3> axis;
  const double angle = turn_between(start.data(), end.data(), axis.data());
  return {axis, angle};
}

// The numbers of both EndGradients.
std::array<double, 18> pose_gradients(const NativePose& start, const NativePose& end, bool rolling,
                                      const std::array<double, 3>& d_eye, const std::array<double, kMotionSums>& sums) {
  EndGradient found[2];
  sensor_pose_gradient(start.data(), end.data(), rolling, d_eye.data(), sums.data(), found);
  std::array<double, 18> numbers;
  static_assert(sizeof(numbers) == sizeof(found));
  std::memcpy(numbers.data(), found, sizeof(found));
  return numbers;
}

Unscented make_unscented(double alpha, double beta, double kappa, double margin, bool require_all) {
  const double spread = alpha * alpha * (3.0 + kappa), first = 1.0 - 3.0 / spread;
  return {spread, 0.5 / spread, first, first + 1.0 - alpha * alpha + beta, margin, require_all};
}

using PoseArray = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
// Rotation, translation, axis, angle and motion of each slice; slices that do not move have no angle.
using SlicePoseArray = nb::ndarray<const double, nb::shape<-1, 19>, nb::c_contig, nb::device::cpu>;

// Reads the poses of the slices, and numbers the moving ones; returns how many move.
int32_t read_slice_poses(const SlicePoseArray& from, std::vector<SlicePose>& to) {
  int32_t moving = 0;
  for (SlicePose& pose : to) {
    const double* row = from.data() + 19 * (&pose - to.data());
    std::copy(row, row + 9, pose.rotation);
    std::copy(row + 9, row + 12, pose.translation);
    std::copy(row + 12, row + 15, pose.axis);
    pose.angle = row[15];
    std::copy(row + 16, row + 19, pose.motion);
    pose.moving = pose.angle > 0.0 ? moving++ : -1;
  }
  return moving;
}

Views make_views(const std::vector<View>& views, const std::vector<int32_t>& slice_begins, const PoseArray& poses,
                 const std::vector<Sensor>& sensors, const SlicePoseArray& slice_poses) {
  static_assert(sizeof(Pose) == kPoseFloats * sizeof(float));
  const std::size_t slices = slice_begins.size() - 1;
  if (slice_begins.empty() || poses.shape(0) != views.size() || poses.shape(1) != slices ||
      poses.shape(2) != kPoseFloats) {
    throw std::invalid_argument("poses must be [views, slices, 15], and slice_begins [slices + 1]");
  }
  if ((!sensors.empty() && sensors.size() != views.size()) || slice_poses.shape(0) != slices) {
    throw std::invalid_argument("sensors must be [views] or none, and slice_poses [slices, 19]");
  }
  Views result{views, slice_begins, std::vector<Pose>(views.size() * slices), sensors, std::vector<SlicePose>(slices)};
  std::memcpy(static_cast<void*>(result.poses.data()), poses.data(), poses.nbytes());
  result.moving_slices = read_slice_poses(slice_poses, result.slice_poses);
  return result;
}

Settings make_settings(bool inria, bool fork_gradients, bool antialiased, int sh_degree, bool deterministic,
                       double alpha_min, double alpha_max, double transmittance_min, double eps2d, double near,
                       double far, double radius_clip, double pixel_center, double scale_modifier,
                       const Unscented& unscented, bool by_jacobian, bool distance_order, bool gsplat_bounds,
                       int tile_size, bool frozen_projection, bool rays, bool surfels) {
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
  s.rectangles = inria || gsplat_bounds || surfels;
  s.unscented = unscented;
  s.by_jacobian = by_jacobian;
  s.distance_order = distance_order;
  s.gsplat_bounds = gsplat_bounds;
  s.tile_size = tile_size;
  s.frozen_projection = frozen_projection;
  s.rays = rays;
  s.surfels = surfels;
  return s;
}

void forward_view(Workspace& workspace, Pass& pass, const Views& views, int view, const Settings& settings,
                  const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Outputs outputs = make_outputs(arrays);
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa()).forward_view(views.views.data(), view, settings, scene, outputs, pass, workspace);
}

void find_ids(Workspace& workspace, Pass& pass, const Views& views, int view, const Settings& settings,
              const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  int32_t* ids = find<int32_t>(arrays, "ids");
  nb::gil_scoped_release unlocked;
  cpu_ids(current_isa())(views.views.data(), view, settings, scene, ids, pass, workspace);
}

void find_visits(Workspace& workspace, Pass& pass, const Views& views, int view, const Settings& settings,
                 const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Visits visits = make_visits(arrays);
  nb::gil_scoped_release unlocked;
  cpu_visits(current_isa())(views.views.data(), view, settings, scene, visits, pass, workspace);
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

void project_backward(Workspace& workspace, Pass& pass, const Views& views, const Settings& settings, bool touched_only,
                      const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  nb::gil_scoped_release unlocked;
  cpu_engine(current_isa())
      .project_backward(views.views.data(), views.count(), settings, scene, upstream, gradients, touched_only, pass,
                        workspace);
}

// Writes words int32 [N, W], and `factors` of steps, of rows in `arrays`.
void pack_words(nb::handle words, nb::handle factors, const nb::kwargs& arrays) {
  const CallArray<int32_t> to(words);
  const CallArray<float> steps(factors);
  const UnpackedRows from = make_rows(arrays);
  const auto count = static_cast<int64_t>(to.shape(0)), row_words = static_cast<int64_t>(to.shape(1));
  nb::gil_scoped_release unlocked;
  cpu_pack_words(current_isa())(from, count, row_words, reinterpret_cast<uint32_t*>(to.data()), steps.data());
}

// `arrays` hold all rows of a scene; rows from `begin` on are written. "sh" may be missing.
void unpack_rows(const Counted& given, bool packed, int64_t begin, const nb::kwargs& arrays) {
  const std::vector<RowBlock> blocks = make_blocks(given, packed);
  const UnpackedRows to = make_rows(arrays);
  nb::gil_scoped_release unlocked;
  cpu_unpack(current_isa())(blocks, begin, to);
}

void bind_settings(nb::module_& m) {
  nb::class_<View>(m, "GaussianView");
  nb::class_<Views>(m, "GaussianViews").def("__len__", &Views::count);
  nb::class_<Settings>(m, "GaussianSettings");
  m.attr("GAUSSIAN_POSE_SUMS") = kPoseSums;
  m.attr("GAUSSIAN_CELL") = kCell;
  m.def("make_gaussian_view", &make_view, nb::kw_only(), "width"_a, "height"_a, "scene"_a, "model"_a, "intrinsics"_a,
        "limits"_a, "distorted"_a, "distortion"_a, "max_radius_squared"_a, "projected"_a, "projection"_a);
  nb::class_<Sensor>(m, "GaussianSensor");
  nb::class_<Unscented>(m, "GaussianUnscented");
  m.attr("GAUSSIAN_SENSOR_SUMS") = kSensorSums;
  m.attr("GAUSSIAN_INVERSE_WINDSHIELD") = 2 * lens_parameter::kWindshield;
  m.def("make_gaussian_sensor", &make_sensor, nb::kw_only(), "lens"_a, "shutter"_a, "continuous"_a, "monotone"_a,
        "inverse_reference"_a, "windshield"_a, "behind"_a, "parameters"_a, "inverse_windshield"_a, "limit"_a,
        "distance_limit"_a, "guess"_a, "rotation"_a, "translation"_a, "axis"_a, "angle"_a, "motion"_a, "clockwise"_a,
        "field"_a);
  m.def("nearest_rotation", &rotation_near, "matrix"_a);
  m.def("turn_between", &turn_of, "start"_a, "end"_a);
  m.def("sensor_pose_gradients", &pose_gradients, "start"_a, "end"_a, "rolling"_a, "d_eye"_a, "sums"_a);
  m.def("make_gaussian_unscented", &make_unscented, nb::kw_only(), "alpha"_a, "beta"_a, "kappa"_a, "margin"_a,
        "require_all"_a);
  m.def("make_gaussian_views", &make_views, "views"_a, "slice_begins"_a, "poses"_a, "sensors"_a, "slice_poses"_a);
  m.def("make_gaussian_settings", &make_settings, nb::kw_only(), "inria"_a, "fork_gradients"_a, "antialiased"_a,
        "sh_degree"_a, "deterministic"_a, "alpha_min"_a, "alpha_max"_a, "transmittance_min"_a, "eps2d"_a, "near"_a,
        "far"_a, "radius_clip"_a, "pixel_center"_a, "scale_modifier"_a, "unscented"_a, "by_jacobian"_a,
        "distance_order"_a, "gsplat_bounds"_a, "tile_size"_a, "frozen_projection"_a, "rays"_a, "surfels"_a);
}

}  // namespace

void bind_gaussians(nb::module_& m) {
  bind_settings(m);
  nb::class_<Pass>(m, "GaussianPass")
      .def(nb::init<>())
      .def("prepare", &Pass::prepare, "count"_a, "retained"_a, "first_row"_a = 0, "end_row"_a = kMaxExtent)
      .def("drop_lists", &Pass::drop_lists)
      .def_prop_ro("bytes", &Pass::bytes);
  nb::class_<Workspace>(m, "GaussianWorkspace")
      .def(nb::init<>())
      .def("drop_rows", &Workspace::drop_rows)
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
  m.def("gaussian_pack_words", &pack_words, "words"_a, "factors"_a, "arrays"_a);
  m.def("gaussian_unpack_rows", &unpack_rows, "blocks"_a, "packed"_a, "begin"_a, "arrays"_a);
  m.def("gaussian_find_ids", &find_ids, "workspace"_a, "state"_a, "views"_a, "view"_a, "settings"_a, "arrays"_a);
  m.def("gaussian_find_visits", &find_visits, "workspace"_a, "state"_a, "views"_a, "view"_a, "settings"_a, "arrays"_a);
  m.def("gaussian_blend_backward", &blend_backward, "workspace"_a, "state"_a, "views"_a, "view"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_project_backward", &project_backward, "workspace"_a, "state"_a, "views"_a, "settings"_a,
        "touched_only"_a, "arrays"_a);
}

}  // namespace lumigrad
