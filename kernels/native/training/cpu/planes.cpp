// Losses of planes other than colours, and exposures of colours.
#include <cmath>

#include "common/math/number.h"
#include "training/cpu/lanes.h"
#include "training/cpu/parts.h"

LG_BEGIN_ENGINE(training)
namespace {

bool counts(const PlaneLoss& view, int64_t at) {
  const float target = plane_at(view.target, at);
  return !view.known || (std::isfinite(target) && target > 0.0f);
}

double count_pixels(const PlaneLoss& view, Workspace& w) {
  return sum_parts(view.pixels, w, [&](int64_t begin, int64_t end) {
    int64_t found = 0;
    for (int64_t i = begin; i < end; ++i) found += counts(view, i);
    return static_cast<double>(found);
  });
}

double compare_pixels(const PlaneLoss& view, float counted, Workspace& w) {
  return sum_parts(view.pixels, w, [&](int64_t begin, int64_t end) {
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      const float difference = counts(view, i) ? view.plane[i] - plane_at(view.target, i) : 0.0f;
      const auto sign = static_cast<float>((difference > 0.0f) - (difference < 0.0f));
      view.gradient[i] = view.weight * (sign / counted);
      sum += static_cast<double>(std::fabs(difference));
    }
    return sum;
  });
}

}  // namespace

void plane_loss(const PlaneLoss* views, int count, double* values, Workspace& w) {
  StageClock clock(w.milliseconds);
  double all = 0.0;
  for (int v = 0; v < count; ++v) all += values[v * kPlaneValues + kCounted] = count_pixels(views[v], w);
  const auto counted = static_cast<float>(all > 1.0 ? all : 1.0);
  for (int v = 0; v < count; ++v) values[v * kPlaneValues + kDifferences] = compare_pixels(views[v], counted, w);
  clock.stage(0);
}

void expose(const Exposure& view) {
  const float* m = view.matrix;
  for_parts(static_cast<int>((view.pixels + kSummed - 1) / kSummed), [&](int part) {
    const int64_t begin = int64_t{part} * kSummed, end = std::min(begin + kSummed, view.pixels);
    for (int64_t i = begin; i < end; ++i) {
      const float* from = view.image + 3 * i;
      float* to = view.exposed + 3 * i;
      for (int j = 0; j < 3; ++j) {
        to[j] = m[4 * j] * from[0] + m[4 * j + 1] * from[1] + m[4 * j + 2] * from[2] + m[4 * j + 3];
      }
    }
  });
}

void expose_backward(const Exposure& view, float* matrix, Workspace& w) {
  const float* m = view.matrix;
  const auto parts = static_cast<int>((view.pixels + kSummed - 1) / kSummed);
  double* sums = w.sums.ensure<double>(std::size_t{kExposure} * parts);
  for_parts(parts, [&](int part) {
    const int64_t begin = int64_t{part} * kSummed, end = std::min(begin + kSummed, view.pixels);
    double found[kExposure] = {};
    for (int64_t i = begin; i < end; ++i) {
      const float* from = view.image + 3 * i;
      float* gradient = view.exposed + 3 * i;
      const float g[3] = {gradient[0], gradient[1], gradient[2]};
      for (int j = 0; j < 3; ++j) {
        for (int k = 0; k < 3; ++k) found[4 * j + k] += static_cast<double>(g[j]) * static_cast<double>(from[k]);
        found[4 * j + 3] += static_cast<double>(g[j]);
      }
      for (int k = 0; k < 3; ++k) gradient[k] = m[k] * g[0] + m[4 + k] * g[1] + m[8 + k] * g[2];
    }
    for (int k = 0; k < kExposure; ++k) sums[part * kExposure + k] = found[k];
  });
  for (int k = 0; k < kExposure; ++k) {
    double total = 0.0;
    for (int part = 0; part < parts; ++part) total += sums[part * kExposure + k];
    matrix[k] = static_cast<float>(total);
  }
}

void center_exposures(float* matrices, int64_t views) {
  for (int k = 0; k < kExposure; ++k) {
    double sum = 0.0;
    for (int64_t v = 0; v < views; ++v) sum += static_cast<double>(matrices[v * kExposure + k]);
    const auto shift = static_cast<float>((k % 5 == 0 ? 1.0 : 0.0) - sum / static_cast<double>(views));
    for (int64_t v = 0; v < views; ++v) matrices[v * kExposure + k] += shift;
  }
}

LG_END
