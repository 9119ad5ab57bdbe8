// Python bindings of resident trainings. The Python package checks everything before the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <tuple>

#include "gaussians/bind_arrays.h"
#include "resident/pose.h"
#include "resident/run.h"
#include "spheres/bind_arrays.h"
#include "training/bind_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace resident;
using serving::Outcome;

// A training with the tensors that its pointers refer to.
struct BoundTraining {
  std::shared_ptr<Training> training;
  nb::object arrays;
};

// Views with the tensors of their target images.
struct BoundViews {
  std::shared_ptr<ViewTable> table = std::make_shared<ViewTable>();
  nb::dict arrays;
};

using RateTuple = std::tuple<double, double, std::uint64_t>;

Rate rate_of(const RateTuple& rate) { return {std::get<0>(rate), std::get<1>(rate), std::get<2>(rate)}; }

Parameter make_parameter(const std::string& name, const RateTuple& rate, const RateTuple& head_rate,
                         const nb::dict& group) {
  return {name, training::make_adam_group(group), rate_of(rate), rate_of(head_rate)};
}

Term make_term(double slope, int parameter, const nb::kwargs& arrays) {
  const training::Mean mean = training::make_mean(arrays, static_cast<float>(slope));
  return {mean.values, mean.count, mean.slope, parameter};
}

Noise make_noise(const RateTuple& rate, double strength, std::uint64_t seed, std::int32_t count,
                 const nb::kwargs& arrays) {
  return {{count, find<float>(arrays, "means"), find<float>(arrays, "quats"), find<float>(arrays, "scales"),
           find<float>(arrays, "opacities")},
          rate_of(rate),
          strength,
          seed};
}

Spheres make_spheres(const spheres::Settings& settings, double min_depth, double max_depth, const nb::kwargs& arrays) {
  return {spheres::make_scene(arrays), settings, min_depth, max_depth};
}

Rows make_rows(const RateTuple& rate, const nb::kwargs& arrays, const std::string& prefix = "") {
  const auto numbers = [&](const char* name) { return find<float>(arrays, (prefix + name).c_str()); };
  return {numbers("values"), numbers("first"), numbers("second"),
          find<std::int64_t>(arrays, (prefix + "steps").c_str()), rate_of(rate)};
}

Exposures make_exposures(const RateTuple& rate, std::int64_t views, bool centered, const nb::kwargs& arrays) {
  return {make_rows(rate, arrays), views, centered};
}

Poses make_poses(const std::optional<RateTuple>& start_rate, const std::optional<RateTuple>& end_rate,
                 const nb::kwargs& arrays) {
  Poses poses{{}, {}, find<double>(arrays, "poses"), find<double>(arrays, "end_poses")};
  if (start_rate) poses.starts = make_rows(*start_rate, arrays, "start_");
  if (end_rate) poses.ends = make_rows(*end_rate, arrays, "end_");
  return poses;
}

Intrinsics make_intrinsics(const RateTuple& rate, std::vector<std::uint32_t> calibrations, const nb::kwargs& arrays) {
  return {make_rows(rate, arrays), find<double>(arrays, "films"), std::move(calibrations)};
}

// Moves poses [C, 4, 4] by motions [C, 6]; the last rows do not change.
void move_poses(const nb::ndarray<double, nb::ndim<3>, nb::c_contig, nb::device::cpu>& poses,
                const nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>& motions) {
  for (std::size_t view = 0; view < poses.shape(0); ++view) {
    double *rows = poses.data() + 16 * view, pose[kPose];
    for (int i = 0; i < kPose; ++i) pose[i] = rows[i < 9 ? i / 3 * 4 + i % 3 : (i - 9) * 4 + 3];
    move_pose(pose, motions.data() + kMotion * view);
    for (int i = 0; i < kPose; ++i) rows[i < 9 ? i / 3 * 4 + i % 3 : (i - 9) * 4 + 3] = pose[i];
  }
}

Observation make_observation(bool is_absolute, const nb::kwargs& arrays) {
  return {{find<float>(arrays, "to_gradient"), find<std::int32_t>(arrays, "to_views"), find<float>(arrays, "to_radii")},
          is_absolute};
}

BoundTraining make_training(std::shared_ptr<Machine> machine, std::uint64_t next, const BoundViews& table,
                            const gaussians::Views* views, const std::optional<Spheres>& spheres, int sh_degree,
                            int views_of_step, Loss loss, std::vector<Term> terms, std::vector<Parameter> parameters,
                            const std::tuple<double, double, double, bool>& adam, std::optional<Exposures> exposures,
                            std::optional<Poses> poses, std::optional<Intrinsics> intrinsics,
                            std::optional<Noise> noise, std::optional<Observation> observation, const nb::object& kept,
                            const nb::kwargs& arrays) {
  loss.terms = std::move(terms);
  const auto [beta1, beta2, epsilon, visible_only] = adam;
  gaussians::Scene scene{};
  if (spheres) {
    scene.count = spheres->scene.count;
    scene.channels = spheres->scene.channels;
  } else {
    scene = gaussians::make_scene(*views, arrays);
  }
  Binding binding{scene,
                  spheres,
                  sh_degree,
                  views_of_step,
                  std::move(loss),
                  {std::move(parameters), {beta1, beta2, epsilon}, visible_only},
                  std::move(exposures),
                  std::move(poses),
                  std::move(intrinsics),
                  std::move(noise),
                  std::move(observation)};
  return {std::make_shared<Training>(std::move(machine), std::move(binding), table.table, next),
          nb::make_tuple(kept, nb::dict(arrays), table.arrays)};
}

Loss make_loss(double l1, double l2, double dssim, double depth, double alpha, double normal, double distortion,
               bool valid) {
  const auto weight = [](double value) { return static_cast<float>(value); };
  return {weight(l1), weight(l2), weight(dssim), weight(depth), weight(alpha), weight(normal), weight(distortion),
          valid,      {}};
}

void set_view(BoundViews& bound, std::uint32_t number, const gaussians::Views& views,
              const gaussians::Settings& settings, const nb::kwargs& arrays) {
  if (views.count() != 1 || views.poses.size() != 1 || views.moving_slices != 0) {
    throw nb::value_error("views: expected one view of one slice that does not move");
  }
  std::optional<gaussians::Sensor> sensor;
  if (!views.sensors.empty()) sensor = views.sensors[0];
  (*bound.table)[number] = {views.views[0],
                            views.poses[0],
                            sensor,
                            {},
                            settings,
                            training::find_plane(arrays, "color"),
                            training::find_plane(arrays, "mask"),
                            training::find_plane(arrays, "depth")};
  bound.arrays[nb::int_(number)] = nb::dict(arrays);
}

void set_sphere_view(BoundViews& bound, std::uint32_t number, const spheres::Camera& camera,
                     const std::array<double, 3>& eye, double focal, const nb::kwargs& arrays) {
  TrainedView view{};
  view.view.width = camera.width;
  view.view.height = camera.height;
  view.sphere_view = SphereView{camera, {eye[0], eye[1], eye[2]}, focal};
  view.color = training::find_plane(arrays, "color");
  view.mask = training::find_plane(arrays, "mask");
  (*bound.table)[number] = view;
  bound.arrays[nb::int_(number)] = nb::dict(arrays);
}

// Several steps of a training.
class BoundRun {
 public:
  BoundRun(serving::Queue& queue, const nb::object& training, std::string tenant, int priority, std::size_t bytes,
           std::int64_t room_bytes, std::uint64_t sequence, std::vector<std::vector<std::uint32_t>> views)
      : training_(training),
        run_(queue, nb::cast<BoundTraining&>(training).training,
             {.tenant = std::move(tenant), .priority = priority, .bytes = bytes, .sequence = sequence}, room_bytes,
             nb::cast<BoundTraining&>(training).training->next(), std::move(views)) {}

  Outcome make() {
    {
      nb::gil_scoped_release unlocked;
      outcome_ = run_.make();
    }
    // The device's thread may still be working on the training.
    if (outcome_ == Outcome::kLost) training_.inc_ref();
    return outcome_;
  }
  void cancel() {
    nb::gil_scoped_release unlocked;
    run_.cancel();
  }
  std::size_t done() const { return run_.reports().size(); }
  const std::vector<std::shared_ptr<Report>>& reports() const { return run_.reports(); }
  double queued_milliseconds() const { return 1e3 * run_.queued_seconds(); }
  double overdue_limit() const { return run_.overdue_limit(); }
  // Throws the error of the failed step.
  void raise() const {
    if (run_.error()) std::rethrow_exception(run_.error());
  }

 private:
  const nb::object training_;
  Run run_;
  Outcome outcome_ = Outcome::kPending;
};

void bind_parts(nb::module_& m) {
  nb::class_<Report>(m, "StepReport")
      .def_prop_ro("is_complete", &Report::is_complete)
      .def("wait", &Report::wait, nb::call_guard<nb::gil_scoped_release>())
      .def_ro("numbers", &Report::numbers)
      .def_ro("milliseconds", &Report::milliseconds);
  nb::class_<Machine>(m, "StepMachine");
  m.def("cpu_step_machine", &make_cpu_machine);
  nb::class_<Parameter>(m, "ResidentParameter");
  m.def("make_resident_parameter", &make_parameter, "name"_a, "rate"_a, "head_rate"_a, "group"_a);
  nb::class_<Term>(m, "ResidentTerm");
  m.def("make_resident_term", &make_term, "slope"_a, "parameter"_a, "arrays"_a);
  nb::class_<Loss>(m, "ResidentLoss");
  m.def("make_resident_loss", &make_loss, nb::kw_only(), "l1"_a, "l2"_a, "dssim"_a, "depth"_a, "alpha"_a, "normal"_a,
        "distortion"_a, "valid"_a);
  nb::class_<Spheres>(m, "ResidentSpheres");
  m.def("make_resident_spheres", &make_spheres, "settings"_a, "min_depth"_a, "max_depth"_a, "arrays"_a);
  m.def(
      "farthest_corner",
      [](const std::array<double, 3>& low, const std::array<double, 3>& high, const std::array<double, 3>& eye) {
        return farthest_corner(low.data(), high.data(), eye.data());
      },
      "low"_a, "high"_a, "eye"_a);
  nb::class_<Exposures>(m, "ResidentExposures");
  m.def("make_resident_exposures", &make_exposures, "rate"_a, "views"_a, "centered"_a, "arrays"_a);
  nb::class_<Poses>(m, "ResidentPoses");
  m.def("make_resident_poses", &make_poses, "start_rate"_a.none(), "end_rate"_a.none(), "arrays"_a);
  nb::class_<Intrinsics>(m, "ResidentIntrinsics");
  m.def("make_resident_intrinsics", &make_intrinsics, "rate"_a, "calibrations"_a, "arrays"_a);
  m.def("move_poses", &move_poses, "poses"_a, "motions"_a);
  nb::class_<Noise>(m, "ResidentNoise");
  m.def("make_resident_noise", &make_noise, "rate"_a, "strength"_a, "seed"_a, "count"_a, "arrays"_a);
  nb::class_<Observation>(m, "ResidentObservation");
  m.def("make_resident_observation", &make_observation, "is_absolute"_a, "arrays"_a);
}

}  // namespace

void bind_resident(nb::module_& m) {
  bind_parts(m);
  nb::class_<BoundViews>(m, "ResidentViews")
      .def(nb::init<>())
      .def("set", &set_view, "number"_a, "views"_a, "settings"_a, "arrays"_a)
      .def("set_spheres", &set_sphere_view, "number"_a, "camera"_a, "eye"_a, "focal"_a, "arrays"_a)
      .def("__contains__", [](const BoundViews& b, std::uint32_t number) { return b.table->contains(number); });
  nb::class_<BoundTraining>(m, "ResidentTraining")
      .def_prop_rw(
          "next", [](const BoundTraining& b) { return b.training->next(); },
          [](BoundTraining& b, std::uint64_t next) { b.training->set_next(next); })
      .def(
          "step",
          [](const BoundTraining& b, const std::vector<std::uint32_t>& views) {
            return b.training->step(b.training->next(), views);
          },
          "views"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("make_resident_training", &make_training, "machine"_a, "next"_a, "table"_a, "views"_a.none(),
        "spheres"_a.none(), "sh_degree"_a, "views_of_step"_a, "loss"_a, "terms"_a, "parameters"_a, "adam"_a,
        "exposures"_a.none(), "poses"_a.none(), "intrinsics"_a.none(), "noise"_a.none(), "observation"_a.none(),
        "kept"_a, "arrays"_a);
  nb::class_<BoundRun>(m, "ResidentRun")
      .def(nb::init<serving::Queue&, const nb::object&, std::string, int, std::size_t, std::int64_t, std::uint64_t,
                    std::vector<std::vector<std::uint32_t>>>(),
           nb::keep_alive<1, 2>(), "queue"_a, "training"_a, "tenant"_a, "priority"_a, "bytes"_a, "room_bytes"_a,
           "sequence"_a, "views"_a)
      .def("make", &BoundRun::make)
      .def("cancel", &BoundRun::cancel)
      .def("raise_error", &BoundRun::raise)
      .def_prop_ro("done", &BoundRun::done)
      .def_prop_ro("reports", &BoundRun::reports)
      .def_prop_ro("queued_milliseconds", &BoundRun::queued_milliseconds)
      .def_prop_ro("overdue_limit", &BoundRun::overdue_limit);
}

}  // namespace lumigrad
