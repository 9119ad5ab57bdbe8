// Steps of spheres: their scene, views and depth range, besides what all steps share.
#pragma once

#include "spheres/params.h"

namespace lumigrad::resident {

// A scene of spheres and how to blend them. `min_depth` and `max_depth` are as requested: a start of 0 is just behind
// the films of a step's cameras, an end of 0 just behind the box around all spheres.
struct Spheres {
  spheres::Scene scene;
  spheres::Settings settings;
  double min_depth, max_depth;
};

// A camera without a depth range, its eye in the world, and the least start of the depth range.
struct SphereView {
  spheres::Camera camera;
  double eye[3];
  double focal;
};

// The distance from `eye` to the farthest corner of a box.
double farthest_corner(const double* low, const double* high, const double* eye);

// Sets the depth range that all views of a step share, as the Python package does; the scene has at least one sphere.
// Throws std::domain_error if there is none, for which Python's step has an error.
void set_depth_range(const Spheres& spheres, const SphereView* views, spheres::Camera* cameras, int count);

}  // namespace lumigrad::resident
