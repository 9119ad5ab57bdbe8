// Python bindings of the sphere engine. The Python package checks every argument before the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <tuple>

#include "spheres/bind_arrays.h"
#include "spheres/cpu/engine.h"
#include "spheres/opencv_camera.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace spheres;

template <std::size_t kCount, class To, class From>
void assign(To (&to)[kCount], const std::array<From, kCount>& from) {
  for (std::size_t i = 0; i < kCount; ++i) to[i] = static_cast<To>(from[i]);
}

Camera make_camera(int width, int height, bool orthogonal, std::array<int, 2> border, std::array<double, 2> aperture,
                   const std::array<double, 3>& eye, const std::array<double, 3>& origin,
                   const std::array<double, 3>& pixel_x, const std::array<double, 3>& pixel_y,
                   const std::array<double, 3>& forward, const std::array<double, 9>& rotation, double half_pixel,
                   double focal, std::array<double, 2> pixels_per_unit, std::array<double, 2> axis, double z_min,
                   double z_max, double inverse_range, const std::array<double, 3>& eye64,
                   const std::array<double, 9>& rotation64, std::array<double, 2> scale, std::array<double, 2> centre,
                   double z_min64, double z_max64) {
  Camera c{};
  c.width = width;
  c.height = height;
  c.orthogonal = orthogonal;
  c.border_x = border[0];
  c.border_y = border[1];
  c.aperture_width = static_cast<float>(aperture[0]);
  c.aperture_height = static_cast<float>(aperture[1]);
  assign(c.eye, eye);
  assign(c.origin, origin);
  assign(c.pixel_x, pixel_x);
  assign(c.pixel_y, pixel_y);
  assign(c.forward, forward);
  assign(c.rotation, rotation);
  c.half_pixel = static_cast<float>(half_pixel);
  c.focal = static_cast<float>(focal);
  c.pixels_per_unit_x = static_cast<float>(pixels_per_unit[0]);
  c.pixels_per_unit_y = static_cast<float>(pixels_per_unit[1]);
  c.axis_x = static_cast<float>(axis[0]);
  c.axis_y = static_cast<float>(axis[1]);
  c.z_min = static_cast<float>(z_min);
  c.z_max = static_cast<float>(z_max);
  c.inverse_range = static_cast<float>(inverse_range);
  assign(c.eye64, eye64);
  assign(c.rotation64, rotation64);
  c.scale_x = scale[0];
  c.scale_y = scale[1];
  c.centre_x = centre[0];
  c.centre_y = centre[1];
  c.z_min64 = z_min64;
  c.z_max64 = z_max64;
  return c;
}

Settings make_settings(bool exact, bool deterministic, int n_track, uint32_t max_hits, double gamma,
                       double allowed_difference, double background_depth) {
  Settings s{};
  s.exact = exact;
  s.deterministic = deterministic;
  s.n_track = n_track;
  s.max_hits = max_hits;
  s.gamma = static_cast<float>(gamma);
  s.allowed_difference = static_cast<float>(allowed_difference);
  s.background_depth = static_cast<float>(background_depth);
  s.gamma64 = gamma;
  s.background_depth64 = background_depth;
  return s;
}

// Drops the lists at the end of a call, whether it succeeds or fails.
class DropLists {
 public:
  explicit DropLists(Workspace& workspace) : workspace_(workspace) {}
  DropLists(const DropLists&) = delete;
  DropLists& operator=(const DropLists&) = delete;
  ~DropLists() { workspace_.drop_lists(); }

 private:
  Workspace& workspace_;
};

void forward(Workspace& workspace, const Camera& camera, const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(arrays);
  const Outputs outputs = make_outputs(arrays);
  nb::gil_scoped_release unlocked;
  const DropLists after(workspace);
  cpu_engine(current_isa()).forward(camera, settings, scene, outputs, workspace);
}

void backward(Workspace& workspace, const Camera& camera, const Settings& settings, uint64_t prepared,
              const nb::kwargs& arrays) {
  const Scene scene = make_scene(arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  nb::gil_scoped_release unlocked;
  const DropLists after(workspace);
  cpu_engine(current_isa()).backward(camera, settings, scene, upstream, gradients, prepared, workspace);
}

// Memory that returns to the pool when the last array that uses it is destroyed.
nb::ndarray<uint8_t, nb::pytorch, nb::c_contig> pool_array(std::size_t bytes) {
  void* block = pool_take(bytes > 0 ? bytes : 1);
  nb::capsule owner(block, [](void* p) noexcept { pool_give(p); });
  return nb::ndarray<uint8_t, nb::pytorch, nb::c_contig>(block, {bytes}, owner);
}

}  // namespace

void bind_spheres(nb::module_& m) {
  nb::class_<Camera>(m, "SphereCamera");
  nb::class_<Settings>(m, "SphereSettings");
  nb::class_<Workspace>(m, "SphereWorkspace")
      .def(nb::init<>())
      .def_prop_ro("bytes", &Workspace::bytes)
      .def_ro("prepared", &Workspace::prepared)
      .def_prop_ro("milliseconds", [](const Workspace& w) {
        return std::array<double, kMaxStages>{w.milliseconds[0], w.milliseconds[1], w.milliseconds[2],
                                              w.milliseconds[3], w.milliseconds[4], w.milliseconds[5]};
      });
  m.attr("SPHERE_STAGES") = nb::make_tuple("setup", "sort", "bin", "blend", "finish");
  m.attr("SPHERE_CAMERA_SUMS") = kCameraSums;
  m.def("make_sphere_camera", &make_camera, nb::kw_only(), "width"_a, "height"_a, "orthogonal"_a, "border"_a,
        "aperture"_a, "eye"_a, "origin"_a, "pixel_x"_a, "pixel_y"_a, "forward"_a, "rotation"_a, "half_pixel"_a,
        "focal"_a, "pixels_per_unit"_a, "axis"_a, "z_min"_a, "z_max"_a, "inverse_range"_a, "eye64"_a, "rotation64"_a,
        "scale"_a, "centre"_a, "z_min64"_a, "z_max64"_a);
  m.def(
      "opencv_sphere_camera",
      [](const std::tuple<double, double, double, double, int, int>& lens, const std::array<double, 9>& rotation,
         const std::array<double, 3>& translation, double near, double far) {
        const auto& [fx, fy, cx, cy, width, height] = lens;
        return opencv_camera({fx, fy, cx, cy, width, height}, rotation, translation, {near, far});
      },
      "lens"_a, "rotation"_a, "translation"_a, "near"_a, "far"_a);
  m.def("make_sphere_settings", &make_settings, nb::kw_only(), "exact"_a, "deterministic"_a, "n_track"_a, "max_hits"_a,
        "gamma"_a, "allowed_difference"_a, "background_depth"_a);
  m.def("sphere_forward", &forward, "workspace"_a, "camera"_a, "settings"_a, "arrays"_a);
  m.def("sphere_backward", &backward, "workspace"_a, "camera"_a, "settings"_a, "prepared"_a, "arrays"_a);
  m.def("pool_array", &pool_array, "bytes"_a);
}

}  // namespace lumigrad
