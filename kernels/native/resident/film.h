// Intrinsics that are refined: each calibration has offsets from its cameras' own intrinsics, logarithms of factors of
// the focal lengths and shifts of the principal point in units of the focal lengths.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math/number.h"
#include "gaussians/film.h"
#include "resident/adam.h"

namespace lumigrad::resident {

// fx, fy, cx and cy.
inline constexpr int kFilm = 4;

// The offsets of a calibration, Adam's moments [kFilm], and the number of its steps.
struct Calibration {
  float *values, *first, *second;
  std::int64_t* steps;
};

// The same after a step, which is taken back unless it is valid.
struct NextCalibration {
  float values[kFilm], first[kFilm], second[kFilm], gradient[kFilm];
  std::int64_t steps;
  std::int32_t is_valid;
};

// The factor of a focal length; infinite on overflow.
LG_INLINE double focal_factor(float offset) {
  // Logarithm of about the largest number.
  constexpr double kLargest = 709.0;
  const double exponent = offset;
  return exponent < kLargest ? std::exp(exponent) : static_cast<double>(INFINITY);
}

LG_INLINE void refine_film(const double* own, const float* offsets, double* film) {
  for (int i = 0; i < 2; ++i) {
    film[i] = own[i] * focal_factor(offsets[i]);
    film[2 + i] = own[2 + i] + own[i] * static_cast<double>(offsets[2 + i]);
  }
}

// Converts intrinsics for the Gaussians' engine. `clamps`: whether the camera is a pinhole, whose Jacobian has limits.
LG_INLINE gaussians::Film drawn_film(const double* own, const float* offsets, int width, int height, bool clamps) {
  // The share of the picture by which the limits lie outside.
  constexpr double kMargin = 0.15;
  double film[kFilm];
  refine_film(own, offsets, film);
  const double fx = film[0], fy = film[1], cx = film[2], cy = film[3];
  gaussians::Film drawn{static_cast<float>(fx),
                        static_cast<float>(fy),
                        static_cast<float>(cx),
                        static_cast<float>(cy),
                        -INFINITY,
                        INFINITY,
                        -INFINITY,
                        INFINITY};
  if (clamps) {
    const double x = kMargin * width, y = kMargin * height;
    drawn.min_u = static_cast<float>(-(cx + x) / fx);
    drawn.max_u = static_cast<float>((width - cx + x) / fx);
    drawn.min_v = static_cast<float>(-(cy + y) / fy);
    drawn.max_v = static_cast<float>((height - cy + y) / fy);
  }
  return drawn;
}

// The gradient of the offsets, given that of the refined intrinsics in pixels. `adds`: whether to add to a gradient.
LG_INLINE void film_gradient(const double* sums, const double* own, const float* offsets, bool adds, float* gradient) {
  for (int i = 0; i < kFilm; ++i) {
    const double scale = i < 2 ? own[i] * focal_factor(offsets[i]) : own[i - 2];
    const auto found = static_cast<float>(static_cast<double>(static_cast<float>(sums[i])) * scale);
    gradient[i] = adds ? gradient[i] + found : found;
  }
}

// Notes whether a camera of the calibration still has intrinsics after the step.
LG_INLINE void check_film(const double* own, NextCalibration* next) {
  double film[kFilm];
  refine_film(own, next->values, film);
  for (int i = 0; i < kFilm; ++i) {
    if (!(std::fabs(film[i]) < static_cast<double>(INFINITY)) || (i < 2 && !(film[i] > 0.0))) next->is_valid = 0;
  }
}

LG_INLINE void begin_step(const Calibration& from, NextCalibration* next) {
  for (int i = 0; i < kFilm; ++i) {
    next->values[i] = from.values[i];
    next->first[i] = from.first[i];
    next->second[i] = from.second[i];
  }
  next->steps = *from.steps + 1;
  next->is_valid = 1;
}

LG_INLINE void end_step(const NextCalibration& next, const Calibration& to) {
  if (!next.is_valid) return;
  for (int i = 0; i < kFilm; ++i) {
    to.values[i] = next.values[i];
    to.first[i] = next.first[i];
    to.second[i] = next.second[i];
  }
  *to.steps = next.steps;
}

}  // namespace lumigrad::resident
