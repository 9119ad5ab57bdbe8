// The numbers of Adam's steps, as the Python package computes them.
#include <algorithm>
#include <cmath>

#include "resident/binding.h"

namespace lumigrad::resident {

double Rate::at(std::uint64_t step) const {
  if (final == 0.0) return initial;
  const double share = std::min(static_cast<double>(step) / static_cast<double>(steps), 1.0);
  return share < 1.0 ? initial * std::pow(final / initial, share) : final;
}

training::AdamSettings Optimizer::settings(std::uint64_t step) const {
  const double number = static_cast<double>(step + 1);
  return {.first_weight = static_cast<float>(1.0 - beta1),
          .second_decay = static_cast<float>(beta2),
          .second_weight = static_cast<float>(1.0 - beta2),
          .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, number))),
          .epsilon = static_cast<float>(epsilon),
          .gradient_scale = 1.0f};
}

float Optimizer::step_size(double rate, std::uint64_t step) const {
  return static_cast<float>(rate / (1.0 - std::pow(beta1, static_cast<double>(step + 1))));
}

std::vector<training::AdamGroup> Optimizer::groups(std::uint64_t step) const {
  std::vector<training::AdamGroup> groups;
  for (const Parameter& parameter : parameters) {
    training::AdamGroup group = parameter.group;
    group.step_size = step_size(parameter.rate.at(step), step);
    group.head_step_size = step_size(parameter.head_rate.at(step), step);
    groups.push_back(group);
  }
  return groups;
}

}  // namespace lumigrad::resident
