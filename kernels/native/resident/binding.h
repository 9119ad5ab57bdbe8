// The binding that the steps of a training share until its rows change. Pointers are to memory of the device that stays
// valid as long as the binding is in use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "density/params.h"
#include "gaussians/params.h"
#include "resident/adam.h"
#include "resident/spheres.h"
#include "training/params.h"

namespace lumigrad::resident {

// A learning rate that changes log-linearly from `initial` to `final` over `steps`, or is constant if `final` is 0.
struct Rate {
  double initial, final;
  std::uint64_t steps;

  double at(std::uint64_t step) const;
};

// A tensor of the scene that is optimised.
struct Parameter {
  std::string name;
  training::AdamGroup group;  // Group without gradient and step sizes.
  Rate rate, head_rate;
};

// A mean that is a term of the loss.
struct Term {
  const float* values;
  std::int64_t count;
  float slope;
  int parameter;  // The parameter whose gradient it adds to, or -1.
};

// Weights of the losses, and whether windows must lie within the image. Colours are compared if one of the first three
// weights is not 0, depths and alphas only in views whose targets have them.
struct Loss {
  float l1, l2, dssim, depth, alpha, normal, distortion;
  bool valid;
  bool compares_color() const { return l1 != 0.0f || l2 != 0.0f || dssim != 0.0f; }
  std::vector<Term> terms;
};

struct Optimizer {
  std::vector<Parameter> parameters;
  Adam adam;
  bool visible_only;

  // The parameters' groups with their step sizes.
  std::vector<training::AdamGroup> groups(std::uint64_t step) const;
};

// Noise of the means, after each step.
struct Noise {
  density::Gaussians rows;
  Rate rate;  // Rate of the means.
  double strength;
  std::uint64_t seed;
};

// Statistics of the views for density control.
struct Observation {
  density::Statistics to;
  bool is_absolute;  // Whether gradients are absolute.
};

// Optimised rows of numbers, one row per view.
struct Rows {
  float *values, *first, *second;  // [views, ...]
  std::int64_t* steps;             // [views], on the host: steps of each row's optimiser.
  Rate rate;
};

// Exposures of the views.
struct Exposures {
  Rows rows;  // [views, 3, 4]
  std::int64_t views;
  bool centered;  // Whether their mean stays the identity.
};

// Poses of the views, see resident/pose.h. Motions [views, 6] are 0 between steps; without those of the ends, the
// starts' motions move both.
struct Poses {
  std::optional<Rows> starts, ends;
  double *poses, *end_poses;  // [views, 12]; ends only of sensors.
};

// Intrinsics of calibrations, see resident/film.h.
struct Intrinsics {
  Rows rows;                                // [calibrations, 4] offsets; steps are on the device too.
  const double* films;                      // [views, 4] the cameras' own intrinsics.
  std::vector<std::uint32_t> calibrations;  // The calibration of each view.
};

struct Binding {
  gaussians::Scene scene;  // Scene without slices and poses; of spheres, only its numbers of rows and channels.
  std::optional<Spheres> spheres;
  int sh_degree;  // Replaces the degree of the views' settings.
  int views;      // Views of a step, and rows of the scene's background.
  Loss loss;
  Optimizer optimizer;
  std::optional<Exposures> exposures;
  std::optional<Poses> poses;  // Poses of all views, instead of the views' own.
  std::optional<Intrinsics> intrinsics;
  std::optional<Noise> noise;
  std::optional<Observation> observation;
};

// A view of the training, with its settings except for the degree of harmonics, and its target image: colours have as
// many channels as the scene, and missing planes are null.
struct TrainedView {
  gaussians::View view;  // Of spheres, only its size.
  gaussians::Pose pose;
  std::optional<gaussians::Sensor> sensor;
  std::optional<SphereView> sphere_view;
  gaussians::Settings settings;
  training::Plane color, mask, depth;
};

// Views by number; the table changes only between steps.
using ViewTable = std::unordered_map<std::uint32_t, TrainedView>;

}  // namespace lumigrad::resident
