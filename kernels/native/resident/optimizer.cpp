// Learning rates, as the Python package computes them.
#include <algorithm>
#include <cmath>

#include "resident/binding.h"

namespace lumigrad::resident {

double Rate::at(std::uint64_t step) const {
  if (final == 0.0) return initial;
  const double share = std::min(static_cast<double>(step) / static_cast<double>(steps), 1.0);
  return share < 1.0 ? initial * std::pow(final / initial, share) : final;
}

std::vector<training::AdamGroup> Optimizer::groups(std::uint64_t step) const {
  std::vector<training::AdamGroup> groups;
  for (const Parameter& parameter : parameters) {
    training::AdamGroup group = parameter.group;
    group.step_size = adam.step_size(parameter.rate.at(step), step);
    group.head_step_size = adam.step_size(parameter.head_rate.at(step), step);
    groups.push_back(group);
  }
  return groups;
}

}  // namespace lumigrad::resident
