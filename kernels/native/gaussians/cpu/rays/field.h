// The rays of a view's pixels, and beams (see math/beam.h) that hold the rays of blocks, tiles and larger parts of the
// image.
#pragma once

#include <algorithm>

#include "common/cpu/pack64.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/beam.h"

LG_BEGIN_ENGINE(gaussians)

namespace beam {
enum Field { kAxis, kCosine = 3, kSine, kCentre, kRadius = 8, kBegin, kEnd, kFields };
}
static_assert(beam::kFields == kBeamFields);
// Sixteen beams, field by field.
inline constexpr int kBeamFloats = beam::kFields * kLanes;

// RayBounds in memory: the axes as columns, the centre, and a field as ray_record::kMotion.
namespace ray_bounds {
enum Field { kAxes, kCentre = 9, kMotion = 12 };
}

// The times at which pixels are exposed, by their row or column.
struct PixelTimes {
  float first, step;
  bool by_rows;

  // The times of a block of sixteen pixels.
  LG_INLINE Pack block(int x, int y) const {
    const Pack at = by_rows ? lane_y() + Pack(static_cast<float>(y)) : lane_x() + Pack(static_cast<float>(x));
    return max(min(fma(at, Pack(step), Pack(first)), Pack(1.0f)), Pack(0.0f));
  }
};

struct RayField {
  bool one_origin;  // Whether all rays start at the frame's origin; if so, only directions are stored.
  int block_floats;
  int windows_x, windows_y, groups_x, groups_y;
  float* rays;     // [tiles, blocks, 3 or 6, 16]: directions of length 1, or 0 where there is no ray; origins
  float* blocks;   // [tiles, 2, kBeamFloats]
  float* tiles;    // [windows, kBeamFloats]
  float* windows;  // [groups of windows, kBeamFloats]
  float* groups;   // [groups / 16, kBeamFloats]
  float *tile_pinholes, *window_pinholes;  // [tiles, 16] and [windows, 16], see cpu/rays/pinholes.h; if `one_origin`.
  PixelTimes times;
  SliceMotion<float>* motions;  // Motions of the moving slices, by number.

  LG_INLINE int group_packs() const { return (groups_x * groups_y + kLanes - 1) / kLanes; }
  LG_INLINE const float* block(int tile, int number) const {
    return rays + (static_cast<int64_t>(tile) * kBlocks + number) * block_floats;
  }
};

// Allocates the field in the state; make_rays fills it.
RayField ray_field(ViewState& state, const Scene& scene, const View& view, int number);
void make_rays(const View* views, int view, const Scene& scene, ViewState& state);

// The azimuths and elevations of a part of sixteen returns of a lidar, radians; returns beyond the image repeat the
// last ones.
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

// The motion of a record's slice; null if it does not move.
LG_INLINE const SliceMotion<float>* motion_of(const RayField& field, const float* record) {
  const float number = record[ray_record::kMotion];
  return number < 0.0f ? nullptr : field.motions + static_cast<int>(number);
}
// The rays of a block as a moving slice sees them.
LG_CALLED inline UnitRay<Pack> unmoved_block(const SliceMotion<float>& motion, Pack times, const float* rays) {
  const auto at = [&](int k) { return Pack::load(rays + k * kLanes); };
  return unmoved(motion, times, Triple<Pack>{at(3), at(4), at(5)}, Triple<Pack>{at(0), at(1), at(2)});
}

LG_INLINE Beam<Pack> load_beams(const float* beams) {
  const auto field = [&](int f) { return Pack::load(beams + f * kLanes); };
  const auto field3 = [&](int f) { return Triple<Pack>{field(f), field(f + 1), field(f + 2)}; };
  return {field3(beam::kAxis),  field(beam::kCosine), field(beam::kSine), field3(beam::kCentre),
          field(beam::kRadius), field(beam::kBegin),  field(beam::kEnd)};
}
// Beams as a moving slice sees them.
LG_CALLED inline Beam<Pack> unmoved_beams(const SliceMotion<float>& motion, const float* beams) {
  return unmoved(motion, load_beams(beams));
}

// The beams, of sixteen, that a Gaussian may reach.
LG_INLINE MaskPack reached(const RayField& field, const float* beams, const float* bounds) {
  const auto column = [&](int f) { return Triple<Pack>{Pack(bounds[f]), Pack(bounds[f + 3]), Pack(bounds[f + 6])}; };
  const float* c = bounds + ray_bounds::kCentre;
  const float number = bounds[ray_bounds::kMotion];
  const RayBounds<Pack> g = {{column(0), column(1), column(2)}, {Pack(c[0]), Pack(c[1]), Pack(c[2])}};
  if (number < 0.0f) return reaches(load_beams(beams), g);
  return reaches(unmoved_beams(field.motions[static_cast<int>(number)], beams), g);
}

LG_END
