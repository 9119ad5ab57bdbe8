#include "gaussians/cpu/rays/project.h"

#include <algorithm>
#include <cmath>

#include "common/cpu/transpose.h"
#include "gaussians/cpu/rays/tile.h"
#include "gaussians/math/sensor/rays.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// The largest edge of a rectangle; a pixel beyond is in a tile that begins before it.
constexpr int kLargestEdge = 65535;

struct Bounds {
  int left, right, top, bottom;  // Windows.
  void add(int x, int y) {
    left = std::min(left, x);
    right = std::max(right, x + 1);
    top = std::min(top, y);
    bottom = std::max(bottom, y + 1);
  }
};

// The windows that a Gaussian may reach.
Bounds windows_of(const RayField& f, const float* bounds) {
  Bounds b = {f.windows_x, 0, f.windows_y, 0};
  for (int p = 0; p < f.group_packs(); ++p) {
    for (unsigned groups = to_bits(reached(f, f.groups + p * kBeamFloats, bounds)); groups != 0; groups &= groups - 1) {
      const int group = p * kLanes + __builtin_ctz(groups);
      const int x = group % f.groups_x << kWindowBits, y = group / f.groups_x << kWindowBits;
      for (unsigned hit = to_bits(reached(f, f.windows + static_cast<int64_t>(group) * kBeamFloats, bounds)); hit != 0;
           hit &= hit - 1) {
        const int i = __builtin_ctz(hit);
        b.add(x + i % kWindowSize, y + i / kWindowSize);
      }
    }
  }
  return b;
}

// The pixels from `low` to `high`, both relative to the centre of `first`, the first pixel of a window.
Pair<Pack> edges(Pack first, Pack low, Pack high, int limit) {
  const float end = static_cast<float>(std::min(limit, kLargestEdge));
  return {clamp(first + ceil_whole(low), 0.0f, end), clamp(first + ceil_whole(high), 0.0f, end)};
}

// Sets the rectangles of Gaussians that are seen only within the window of tiles of their centre; returns which.
MaskPack fit_windows(const View& view, const RayField& field, const Pack* bounds, Projected<Pack>& g) {
  constexpr float kWidth = kWindowSize * kTileWidth, kHeight = kWindowSize * kTileHeight;
  const auto number = [](Pack pixel, float size, int count) {
    return round_whole(clamp(pixel * Pack(1.0f / size) - Pack(0.5f), 0.0f, static_cast<float>(count - 1)));
  };
  const Pack column = number(g.x, kWidth, field.windows_x), row = number(g.y, kHeight, field.windows_y);
  alignas(64) float columns[kLanes], rows[kLanes];
  column.store(columns);
  row.store(rows);
  Pack f[kLanes];
  load_fields(
      [&](int i) {
        const int64_t window = static_cast<int64_t>(rows[i]) * field.windows_x + static_cast<int64_t>(columns[i]);
        return field.window_pinholes + window * kLanes;
      },
      0, kLanes, f);
  const Outlines o = outlines_of(pinhole_matrix(f), ray_bounds_of(bounds));
  const Pack margin = f[pinhole::kMargin], across = o.half_width + margin, along = o.half_height + margin;
  const Pack left = o.ellipse.x - across, right = o.ellipse.x + across, top = o.ellipse.y - along,
             bottom = o.ellipse.y + along;
  // Beyond the first and the last window there is nothing.
  const auto within = [](Pack low, Pack high, float size, Pack at, int count) {
    const MaskPack begins = (low >= Pack(-0.5f)) | (at <= Pack(0.0f));
    return begins & ((high <= Pack(size - 0.5f)) | (at >= Pack(static_cast<float>(count - 1))));
  };
  const MaskPack fits = g.visible & o.whole & (margin >= Pack(0.0f)) &
                        within(left, right, kWidth, column, field.windows_x) &
                        within(top, bottom, kHeight, row, field.windows_y);
  const Pair<Pack> x = edges(column * Pack(kWidth), left, right + Pack(1.0f), view.width);
  const Pair<Pack> y = edges(row * Pack(kHeight), top, bottom + Pack(1.0f), view.height);
  const MaskPack some = fits & (x.x < x.y) & (y.x < y.y);
  g.left = zero_unless(some, x.x);
  g.right = zero_unless(some, x.y);
  g.top = zero_unless(some, y.x);
  g.bottom = zero_unless(some, y.y);
  return fits;
}

// Writes the records and the bounds of the Gaussians in a part of a pack.
void describe(const SensorPlace& at, const Gaussian<Pack64>& gaussian, Pack64 reach, Pack64* record, Pack64* bounds) {
  const RayBody<Pack64> g = ray_body(at, gaussian);
  write_ray_record(g, record);
  const Triple<Pack64> length = scaled(g.scale, reach);
  const Matrix<Pack64> m = {times(g.axes.x, length), times(g.axes.y, length), times(g.axes.z, length)};
  const Pack64 sides[ray_bounds::kMotion] = {m.x.x, m.x.y, m.x.z, m.y.x,      m.y.y,      m.y.z,
                                             m.z.x, m.z.y, m.z.z, g.centre.x, g.centre.y, g.centre.z};
  for (int i = 0; i < ray_bounds::kMotion; ++i) bounds[i] = sides[i];
}

}  // namespace

void project_rays(const SensorPlace& at, const RayField& field, const Gaussian<Pack>& gaussian, int used,
                  Projected<Pack>& g, Pack (&record)[kRecordFloats], Pack (&sides)[kRecordFloats]) {
  const Settings& settings = at.settings;
  const Pack above = g.log2_opacity - Pack(log2_positive(settings.alpha_min));
  const Pack reach = sqrt(Pack(kTwoLn2) * max(above, Pack(0.0f)));
  const bool on_film = settings.gsplat_bounds && at.sensor.lens != SensorLens::lidar;
  for (int i = 0; i < kRecordFloats; ++i) record[i] = sides[i] = Pack(0.0f);
  for (int part = 0; part < kParts64; ++part) {
    Pack64 r[ray_record::kLog2Opacity], s[ray_bounds::kMotion];
    describe(at, gaussian_part(gaussian, part), widen(reach, part), r, s);
    for (int i = 0; i < ray_record::kLog2Opacity; ++i) narrow(r[i], part, record[i]);
    for (int i = 0; i < ray_bounds::kMotion; ++i) narrow(s[i], part, sides[i]);
  }
  record[ray_record::kLog2Opacity] = g.log2_opacity;
  record[ray_record::kMotion] = sides[ray_bounds::kMotion] = Pack(static_cast<float>(at.slice.moving));
  const bool by_windows = !on_film && field.one_origin && at.sensor.lens != SensorLens::lidar;
  const unsigned known = by_windows ? to_bits(fit_windows(at.view, field, sides, g)) : 0;
  transpose_16(record);
  transpose_16(sides);
  alignas(64) float rectangle[4][kLanes] = {};
  if (known != 0) {
    g.left.store(rectangle[0]);
    g.right.store(rectangle[1]);
    g.top.store(rectangle[2]);
    g.bottom.store(rectangle[3]);
  }
  each_lane(g.visible, [&](int i) {
    if (i >= used || on_film || (known >> i & 1u) != 0) return;
    alignas(64) float bounds[kRecordFloats];
    sides[i].store(bounds);
    const Bounds b = windows_of(field, bounds);
    if (b.left >= b.right) return;
    const auto pixels = [](int windows, int tile, int limit) {
      return static_cast<float>(std::min({windows * kWindowSize * tile, limit, kLargestEdge}));
    };
    rectangle[0][i] = pixels(b.left, kTileWidth, at.view.width);
    rectangle[1][i] = pixels(b.right, kTileWidth, at.view.width);
    rectangle[2][i] = pixels(b.top, kTileHeight, at.view.height);
    rectangle[3][i] = pixels(b.bottom, kTileHeight, at.view.height);
  });
  if (on_film) return;
  g.left = Pack::load(rectangle[0]);
  g.right = Pack::load(rectangle[1]);
  g.top = Pack::load(rectangle[2]);
  g.bottom = Pack::load(rectangle[3]);
}

GaussianGradient<Pack> project_rays_backward(const SensorPlace& at, const Gaussian<Pack>& gaussian, const Pack* fields,
                                             Pack v_depth, Pack v_inverse_depth, unsigned mask,
                                             const SensorSums& view_sums) {
  GaussianGradient<Pack> to{};
  for (int part = 0; part < kParts64; ++part) {
    if ((mask >> (part * kLanes64) & kPartBits) == 0) continue;
    Pack64 f[ray_row::kUsed];
    for (int i = 0; i < ray_row::kUsed; ++i) f[i] = widen(fields[i], part);
    const PartSums add{view_sums, mask_of_part(mask, part)};
    put(along_rays_backward(at, gaussian_part(gaussian, part), f, widen(v_depth, part), widen(v_inverse_depth, part),
                            add),
        part, to);
  }
  return to;
}

LG_END
