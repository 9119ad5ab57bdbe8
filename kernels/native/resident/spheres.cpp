#include "resident/spheres.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace lumigrad::resident {
namespace {

constexpr float kFloatMargin = 1e-6f;
constexpr double kMargin = 1e-6;
// The far end, relative to the farthest corner of the box; and the least far end over the least near one.
constexpr double kBehind = 1.001, kLeastRatio = 2.0, kLeastNear = 1e-3;

struct Box {
  double low[3], high[3];
};

// Returns the box around all spheres; throws if a number is not finite.
Box box_around(const spheres::Scene& scene) {
  float low[3], high[3];
  std::fill(low, low + 3, INFINITY);
  std::fill(high, high + 3, -INFINITY);
  bool is_finite = true;
  for (std::int32_t i = 0; i < scene.count; ++i) {
    for (int axis = 0; axis < 3; ++axis) {
      const float begin = scene.positions[3 * i + axis] - scene.radii[i];
      const float end = scene.positions[3 * i + axis] + scene.radii[i];
      low[axis] = begin < low[axis] ? begin : low[axis];
      high[axis] = end > high[axis] ? end : high[axis];
      is_finite &= std::isfinite(begin) && std::isfinite(end);
    }
  }
  if (!is_finite) throw std::domain_error("a sphere is not finite");
  Box box;
  std::copy(low, low + 3, box.low);
  std::copy(high, high + 3, box.high);
  return box;
}

double near_end(const Spheres& s, double focal) {
  if (s.min_depth != 0.0) return s.min_depth;
  return s.settings.exact ? focal + 2 * kMargin : static_cast<float>(focal) + 2.0f * kFloatMargin;
}

double far_end(const Spheres& s, const SphereView* views, int count, double focal) {
  if (s.max_depth != 0.0) return s.max_depth;
  const Box box = box_around(s.scene);
  double farthest = 0.0;
  for (int v = 0; v < count; ++v) farthest = std::max(farthest, farthest_corner(box.low, box.high, views[v].eye));
  const double least = kLeastRatio * std::max({s.min_depth, kLeastNear, focal});
  return static_cast<float>(std::max(least, kBehind * farthest));
}

}  // namespace

double farthest_corner(const double* low, const double* high, const double* eye) {
  long double sum = 0.0L;
  for (int axis = 0; axis < 3; ++axis) {
    const long double side = std::max(std::abs(low[axis] - eye[axis]), std::abs(high[axis] - eye[axis]));
    sum += side * side;
  }
  return static_cast<double>(std::sqrt(sum));
}

void set_depth_range(const Spheres& spheres, const SphereView* views, spheres::Camera* cameras, int count) {
  double focal = views[0].focal;
  for (int v = 1; v < count; ++v) focal = std::max(focal, views[v].focal);
  const double near = near_end(spheres, focal), far = far_end(spheres, views, count, focal);
  if (!(near > focal && far > near + kMargin && std::isfinite(far))) throw std::domain_error("no depth range");
  for (int v = 0; v < count; ++v) {
    spheres::Camera& camera = cameras[v] = views[v].camera;
    camera.z_min64 = near;
    camera.z_max64 = far;
    camera.z_min = static_cast<float>(near);
    camera.z_max = static_cast<float>(far);
    camera.inverse_range = 1.0f / (camera.z_max - camera.z_min);
  }
}

}  // namespace lumigrad::resident
