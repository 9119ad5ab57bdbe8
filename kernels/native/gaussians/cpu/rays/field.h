// The rays of a view's pixels, and beams that hold those of blocks, tiles and larger parts of the image: a Gaussian is
// tested against beams to find the pixels that it may reach, whatever the lens and the shutter.
#pragma once

#include <algorithm>

#include "common/cpu/pack64.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/ray.h"

LG_BEGIN_ENGINE(gaussians)

// A cone around an axis, of a half angle below 90 degrees, around all origins within a radius of a point. A beam that
// cannot be described so has an infinite radius, and one without rays the opposite.
namespace beam {
enum Field { kAxis, kCosine = 3, kSine, kCentre, kRadius = 8, kFields };
}
// Sixteen beams, field by field.
inline constexpr int kBeamFloats = beam::kFields * kLanes;

// Tiles are grouped into windows of 4 x 4, and these again.
inline constexpr int kWindowBits = 2, kWindowSize = 1 << kWindowBits;

struct RayField {
  bool one_origin;  // All rays start at the frame's origin; only directions are stored.
  int block_floats;
  int windows_x, windows_y, groups_x, groups_y;
  float* rays;     // [tiles, blocks, 3 or 6, 16]: directions of length 1, or 0 where there is no ray; origins
  float* blocks;   // [tiles, 2, kBeamFloats]
  float* tiles;    // [windows, kBeamFloats]
  float* windows;  // [groups of windows, kBeamFloats]
  float* groups;   // [groups / 16, kBeamFloats]

  LG_INLINE int group_packs() const { return (groups_x * groups_y + kLanes - 1) / kLanes; }
  LG_INLINE const float* block(int tile, int number) const {
    return rays + (static_cast<int64_t>(tile) * kBlocks + number) * block_floats;
  }
};

// Room in the state; filled by make_rays.
RayField ray_field(ViewState& state, const Scene& scene, int view);
void make_rays(const View* views, int view, const Scene& scene, ViewState& state);

// The azimuths and elevations of a part of sixteen returns of a lidar, radians; those beyond the image as the last
// ones.
LG_INLINE Pair<Pack64> return_angles(const View& view, const double* table, int x, int y, int part) {
  Pair<Pack64> angles;
  for (int i = 0; i < kLanes64; ++i) {
    const int lane = part * kLanes64 + i;
    const int column = std::min(x + lane % 4, view.width - 1), row = std::min(y + lane / 4, view.height - 1);
    angles.x.v[i] = table[2 * view.height + column] + table[view.height + row];
    angles.y.v[i] = table[row];
  }
  return angles;
}
LG_INLINE const double* lidar_table(const View& view, int number, const Scene& scene) {
  return scene.lidar_angles + static_cast<int64_t>(number) * (2 * view.height + view.width);
}

// Those of sixteen beams that a Gaussian may reach, given as in ray_bounds. A plane through the beam's tip, along its
// side that faces the Gaussian, separates the others.
LG_INLINE MaskPack reached(const float* beams, const float* bounds) {
  const auto field = [&](int f) { return Pack::load(beams + f * kLanes); };
  const auto row = [&](int f) { return Triple<Pack>{Pack(bounds[f]), Pack(bounds[f + 3]), Pack(bounds[f + 6])}; };
  const float* c = bounds + ray_bounds::kCentre;
  const Triple<Pack> axis = {field(beam::kAxis), field(beam::kAxis + 1), field(beam::kAxis + 2)};
  const Pack cosine = field(beam::kCosine), sine = field(beam::kSine);
  const Triple<Pack> v = {Pack(c[0]) - field(beam::kCentre), Pack(c[1]) - field(beam::kCentre + 1),
                          Pack(c[2]) - field(beam::kCentre + 2)};
  const Pack along = dot(axis, v);
  const Triple<Pack> p = {fnma(along, axis.x, v.x), fnma(along, axis.y, v.y), fnma(along, axis.z, v.z)};
  const Pack square = max(dot(p, p), Pack(1e-30f)), inverse = quick_inverse_sqrt(square), beside = square * inverse;
  const Pack toward = cosine * inverse;
  const Triple<Pack> normal = {fma(toward, p.x, -(sine * axis.x)), fma(toward, p.y, -(sine * axis.y)),
                               fma(toward, p.z, -(sine * axis.z))};
  const Pack x = dot(row(0), normal), y = dot(row(1), normal), z = dot(row(2), normal);
  const Pack half = sqrt(fma(x, x, fma(y, y, z * z)));
  const Pack rounding = Pack(1e-6f) * (beside + abs(along));
  const Pack apart = fma(cosine, beside, -(sine * along)) - field(beam::kRadius);
  return apart <= fma(half, Pack(1.0001f), rounding);
}

LG_END
