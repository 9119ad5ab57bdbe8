// What the steps of a training have in common until its rows change. Pointers are to memory of the device that stays as
// long as the binding is in use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "density/params.h"
#include "gaussians/params.h"
#include "training/params.h"

namespace lumigrad::resident {

// A learning rate that changes log-linearly from `initial` to `final` over `steps`; final 0: it is constant.
struct Rate {
  double initial, final;
  std::uint64_t steps;

  double at(std::uint64_t step) const;
};

// A tensor of the scene that is optimised.
struct Parameter {
  std::string name;
  training::AdamGroup group;  // Without gradient and step sizes.
  Rate rate, head_rate;
};

// A mean that is a term of the loss.
struct Term {
  const float* values;
  std::int64_t count;
  float slope;
  int parameter;  // Whose gradient it adds to; -1: none.
};

struct Loss {
  float l1, l2, dssim;
  bool valid;
  std::vector<Term> terms;
};

struct Optimizer {
  std::vector<Parameter> parameters;
  double beta1, beta2, epsilon;
  bool visible_only;

  // For a step, counted from 0.
  training::AdamSettings settings(std::uint64_t step) const;
  // The parameters' groups with their step sizes.
  std::vector<training::AdamGroup> groups(std::uint64_t step) const;
};

// Noise of the means, after each step.
struct Noise {
  density::Gaussians rows;
  Rate rate;  // Of the means.
  double strength;
  std::uint64_t seed;
};

// Statistics of the views for density control.
struct Observation {
  density::Statistics to;
  bool is_absolute;  // Of absolute gradients.
};

struct Binding {
  gaussians::Scene scene;  // Without slices and poses.
  gaussians::Settings settings;
  int views;  // Of a step: the scene's background has as many rows.
  Loss loss;
  Optimizer optimizer;
  std::optional<Noise> noise;
  std::optional<Observation> observation;
};

// A view of the training, with its target image, which has as many channels as the scene.
struct TrainedView {
  gaussians::View view;
  gaussians::Pose pose;
  training::Plane target;
};

// By number; only between steps it changes.
using ViewTable = std::unordered_map<std::uint32_t, TrainedView>;

}  // namespace lumigrad::resident
