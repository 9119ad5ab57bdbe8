// The decision to keep, clone, split or prune a row: adaptive density control of "3D Gaussian splatting for real-time
// radiance field rendering" (Kerbl et al., SIGGRAPH 2023). It only compares stored values, so that every machine gets
// the same result.
#pragma once

#include "common/math/number.h"
#include "density/params.h"

LG_BEGIN_ENGINE(density)

// Rows with NaN count as too large or too transparent, and are pruned. Branches are avoided, since they would be
// mispredicted.
LG_INLINE Fate fate_of(const Limits& limits, float gradient, float size, float opacity, float radius) {
  const bool small = size <= limits.clone_size, grows = gradient > limits.gradient, wide = radius > limits.prune_radius;
  const bool goes = !(opacity >= limits.prune_opacity) | !(size <= limits.prune_size) | wide;
  const bool children_go = !(opacity >= limits.child_opacity) | !(size <= limits.child_size) | wide;
  const bool splits = (grows & !small) | (radius > limits.split_radius);
  const int stays = grows ? kCloned : kKept, fate = splits ? kSplit : stays;
  return (splits ? children_go : goes) ? kGone : static_cast<Fate>(fate);
}

template <int kAxes>
LG_INLINE Fate fate_of(const Limits& limits, const Candidates& rows, int64_t row) {
  const float* sizes = rows.sizes + kAxes * row;
  float size = sizes[0];
  for (int k = 1; k < kAxes; ++k) size = size != size || sizes[k] <= size ? size : sizes[k];
  const int32_t views = rows.statistics.views[row];
  const float gradient = rows.statistics.gradient[row] / static_cast<float>(views > 1 ? views : 1);
  // Rows without opacities are never too transparent.
  const float opacity = rows.opacities != nullptr ? rows.opacities[row] : limits.prune_opacity;
  return fate_of(limits, gradient, size, opacity, rows.statistics.radii[row]);
}

// Adds a view's observation of a row. On the film there are two axes.
template <int kAxes>
LG_INLINE void observe(const Observed& o, const Statistics& to, int view, int64_t row) {
  const int64_t at = int64_t{view} * o.count + row;
  const float* g = o.gradient + kAxes * at;
  float length2 = 0.0f;
  for (int k = 0; k < kAxes; ++k) length2 += (g[k] * o.scale[k]) * (g[k] * o.scale[k]);
  bool visible;
  float radius = 0.0f;
  if constexpr (kAxes == 2) {
    const int32_t x = o.seen[2 * at], y = o.seen[2 * at + 1];
    visible = (x < y ? x : y) > 0;
    radius = static_cast<float>(x < y ? y : x) * o.inverse_extent;
  } else {
    visible = o.seen[at] > 0;
  }
  const float length = sqrt(length2);
  to.gradient[row] += visible ? length : 0.0f;
  to.views[row] += visible ? 1 : 0;
  to.radii[row] = max(to.radii[row], visible ? radius : 0.0f);
}

LG_END
