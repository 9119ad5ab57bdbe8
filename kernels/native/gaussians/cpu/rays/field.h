// The rays of a view's pixels, and beams (see math/beam.h) that hold those of blocks, tiles and larger parts of the
// image.
#pragma once

#include <algorithm>

#include "common/cpu/pack64.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/beam.h"

LG_BEGIN_ENGINE(gaussians)

namespace beam {
enum Field { kAxis, kCosine = 3, kSine, kCentre, kRadius = 8, kFields };
}
static_assert(beam::kFields == kBeamFields);
// Sixteen beams, field by field.
inline constexpr int kBeamFloats = beam::kFields * kLanes;

// RayBounds in memory: the axes as columns.
namespace ray_bounds {
enum Field { kAxes, kCentre = 9, kUsed = 12 };
}

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

// Those of sixteen beams that a Gaussian may reach.
LG_INLINE MaskPack reached(const float* beams, const float* bounds) {
  const auto field = [&](int f) { return Pack::load(beams + f * kLanes); };
  const auto field3 = [&](int f) { return Triple<Pack>{field(f), field(f + 1), field(f + 2)}; };
  const auto column = [&](int f) { return Triple<Pack>{Pack(bounds[f]), Pack(bounds[f + 3]), Pack(bounds[f + 6])}; };
  const float* c = bounds + ray_bounds::kCentre;
  return reaches<Pack>(
      {field3(beam::kAxis), field(beam::kCosine), field(beam::kSine), field3(beam::kCentre), field(beam::kRadius)},
      {{column(0), column(1), column(2)}, {Pack(c[0]), Pack(c[1]), Pack(c[2])}});
}

LG_END
