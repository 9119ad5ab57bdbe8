// Interpolation of a grid of signed distances: trilinear, and as in cuRobo. Points are in the grid's frame.
#pragma once

#include "meshes/math/distance.h"
#include "meshes/params.h"

LG_BEGIN_ENGINE(meshes)

// The position of a point between voxel centres along one axis.
struct Between {
  int32_t low;
  int64_t step;    // Offset of the next voxel's value; 0 if there is none.
  float fraction;  // Fraction of the way to the next voxel.
};

// `place` is counted in voxels from the first centre on. NaN counts as 0.
LG_INLINE Between between(float place, int32_t voxels, int64_t stride) {
  const float last = static_cast<float>(voxels - 1);
  const float held = min(max(place, 0.0f), last);
  const int32_t highest = voxels > 1 ? voxels - 2 : 0, whole = truncate(held), low = whole < highest ? whole : highest;
  return {low, voxels > 1 ? stride : 0, held - static_cast<float>(low)};
}

LG_INLINE float mix(float a, float b, float t) { return fma(t, b - a, a); }

// Trilinear interpolation between voxel centres. Outside, the value at the nearest point of the grid plus the distance
// to it; the derivative is that of the sum.
LG_INLINE Distance<float> distance_to_grid(const Obstacle& grid, Vec<float> p) {
  const float* half = grid.half;
  const Vec<float> held = {min(max(p.x, -half[0]), half[0]), min(max(p.y, -half[1]), half[1]),
                           min(max(p.z, -half[2]), half[2])};
  const float per_voxel = 1.0f / grid.voxel;
  const int64_t row = grid.dims[2], plane = row * grid.dims[1];
  const Between x = between((held.x + half[0]) * per_voxel, grid.dims[0], plane);
  const Between y = between((held.y + half[1]) * per_voxel, grid.dims[1], row);
  const Between z = between((held.z + half[2]) * per_voxel, grid.dims[2], 1);
  const float* at = grid.values + x.low * plane + y.low * row + z.low;
  float along_z[4], slope_z[4];
  for (int i = 0; i < 4; ++i) {
    const float* edge = at + (i >> 1) * x.step + (i & 1) * y.step;
    along_z[i] = mix(edge[0], edge[z.step], z.fraction);
    slope_z[i] = edge[z.step] - edge[0];
  }
  const float low = mix(along_z[0], along_z[1], y.fraction), high = mix(along_z[2], along_z[3], y.fraction);
  const Vec<float> slope = {
      high - low, mix(along_z[1] - along_z[0], along_z[3] - along_z[2], x.fraction),
      mix(mix(slope_z[0], slope_z[1], y.fraction), mix(slope_z[2], slope_z[3], y.fraction), x.fraction)};
  const Vec<float> way = p - held;
  const float length = sqrt(dot(way, way)), inverse = length > 0.0f ? 1.0f / length : 0.0f;
  return {mix(low, high, x.fraction) + length,
          {way.x == 0.0f ? slope.x * per_voxel : way.x * inverse, way.y == 0.0f ? slope.y * per_voxel : way.y * inverse,
           way.z == 0.0f ? slope.z * per_voxel : way.z * inverse}};
}

// The point of the surface that the value and the derivative at `p` point to.
LG_INLINE Vec<float> surface_point_of_grid(Vec<float> p, Distance<float> at) {
  const float square = dot(at.gradient, at.gradient);
  return square > 0.0f ? along(p, -at.value / sqrt(square), at.gradient) : p;
}

// cuRobo's distance where the grid was not observed.
inline constexpr float kUnobserved = 1000.0f;
// The number of voxels at each end of an axis that cuRobo treats as not observed, like everything outside.
inline constexpr int kUnobservedVoxels = 2;

// The distance as in cuRobo (spec section 8): the value of the next lower voxel, and the direction of central
// differences, 0 where they are 0. False where nothing was observed.
LG_INLINE bool distance_to_grid_curobo(const Obstacle& grid, Vec<float> p, Distance<float>& result) {
  const float place[3] = {(p.x + grid.half[0]) / grid.voxel, (p.y + grid.half[1]) / grid.voxel,
                          (p.z + grid.half[2]) / grid.voxel};
  const int64_t row = grid.dims[2], stride[3] = {row * grid.dims[1], row, 1};
  result = {kUnobserved, {0.0f, 0.0f, 0.0f}};
  int64_t offset = 0;
  for (int i = 0; i < 3; ++i) {
    const float end = static_cast<float>(grid.dims[i] - kUnobservedVoxels);
    if (!(place[i] >= static_cast<float>(kUnobservedVoxels) && place[i] < end)) return false;
    offset += truncate(place[i]) * stride[i];
  }
  const float* at = grid.values + offset;
  const Vec<float> slope = {at[stride[0]] - at[-stride[0]], at[stride[1]] - at[-stride[1]], at[1] - at[-1]};
  const float square = dot(slope, slope);
  result.value = *at;
  if (square > 0.0f) result.gradient = (1.0f / sqrt(square)) * slope;
  return true;
}

LG_END
