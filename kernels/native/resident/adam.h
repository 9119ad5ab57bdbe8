// The numbers of Adam's steps, as the Python package computes them.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math/number.h"
#include "training/params.h"

namespace lumigrad::resident {

struct Adam {
  double beta1, beta2, epsilon;

  // Settings of a step, counted from 0.
  LG_INLINE training::AdamSettings settings(std::uint64_t step) const {
    const double number = static_cast<double>(step + 1);
    return {.first_weight = static_cast<float>(1.0 - beta1),
            .second_decay = static_cast<float>(beta2),
            .second_weight = static_cast<float>(1.0 - beta2),
            .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, number))),
            .epsilon = static_cast<float>(epsilon),
            .gradient_scale = 1.0f};
  }
  LG_INLINE float step_size(double rate, std::uint64_t step) const {
    return static_cast<float>(rate / (1.0 - std::pow(beta1, static_cast<double>(step + 1))));
  }
};

}  // namespace lumigrad::resident
