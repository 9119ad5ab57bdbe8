// The gradients that pass through the rays of pixels to lenses, poses or given rays.
#pragma once

#include "gaussians/cpu/rays/field.h"

LG_BEGIN_ENGINE(gaussians)

// Sixteen pixels with the gradients of their rays, in the frame of the camera at the start.
struct RayBlock {
  const View& view;
  int number;
  const Scene& scene;
  int x, y;
  const float* rays;
  bool one_origin;
  const float* v_direction;  // [3, 16]
  const float* v_origin;     // [3, 16]

  LG_INLINE const Sensor& sensor() const { return scene.sensors[number]; }
};

// Allocates and clears the totals [kRaySums] and the sums of each row of tiles.
double* clear_ray_sums(ViewState& state);
// Adds the gradients of the lens and of the motion, see kRaySums, and writes the gradients of a lidar's angles [V, H,
// W, 2].
void add_ray_sums(const RayBlock& block, double* sums, float* lidar_angles);
void total_ray_sums(const ViewState& state, double* sums);
// Writes the gradients of rays [V, H, W, 6], world frame.
void write_ray_gradients(const RayBlock& block, const float* given, float* to);

void blend_rays_backward(const View* views, int view, const Settings& settings, const Scene& scene, const Upstream& up,
                         const Gradients& gradients, Pass& pass, Workspace& workspace);

LG_END
