// Sixteen Gaussians as packs.
#pragma once

#include "common/cpu/transpose.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/project.h"
#include "gaussians/math/sh.h"

LG_BEGIN_ENGINE(gaussians)

// columns[f] lane i = rows[(first + i)][f]; lanes past the last repeat it.
LG_INLINE void load_columns(const float* rows, int64_t first, int used, int width, float* columns) {
  const float* from = rows + first * width;
  for (int i = 0; i < kLanes; ++i) {
    const float* row = from + static_cast<int64_t>(i < used ? i : used - 1) * width;
    for (int f = 0; f < width; ++f) columns[f * kLanes + i] = row[f];
  }
}

LG_INLINE Pack column(const float* columns, int f) { return Pack::load(columns + f * kLanes); }

template <bool kCovariance>
LG_INLINE Gaussian<Pack> load_gaussians(const Scene& scene, int64_t first, int used) {
  alignas(64) float c[6 * kLanes];
  Gaussian<Pack> g;
  load_columns(scene.means, first, used, 3, c);
  g.mean = {column(c, 0), column(c, 1), column(c, 2)};
  load_columns(scene.opacities, first, used, 1, c);
  g.opacity = column(c, 0);
  const Pack zero = Pack(0.0f);
  if constexpr (kCovariance) {
    load_columns(scene.covariances, first, used, 6, c);
    g.covariance = {column(c, 0), column(c, 1), column(c, 2), column(c, 3), column(c, 4), column(c, 5)};
    g.quaternion = {zero, zero, zero, zero};
    g.scale = {zero, zero, zero};
  } else {
    load_columns(scene.quats, first, used, 4, c);
    g.quaternion = {column(c, 0), column(c, 1), column(c, 2), column(c, 3)};
    load_columns(scene.scales, first, used, 3, c);
    g.scale = {column(c, 0), column(c, 1), column(c, 2)};
    g.covariance = {zero, zero, zero, zero, zero, zero};
  }
  return g;
}

// The rows of an array [N, width] of up to sixteen Gaussians. Those not in `mask` are given the row of one that is, so
// that their memory is not touched; mask must not be empty.
struct Rows {
  const float* at[kLanes];

  LG_INLINE Rows(const float* array, int64_t first, int64_t width, unsigned mask) {
    const int some = __builtin_ctz(mask);
    for (int i = 0; i < kLanes; ++i) at[i] = array + (first + ((mask >> i & 1u) != 0 ? i : some)) * width;
  }
};

inline constexpr int kFewChannels = 3;

// Spherical harmonics of one channel or, if there are three, of all: column (k * channels + c) is coefficient k of c.
struct Coefficients {
  alignas(64) float columns[kMaxCoefficients * kFewChannels * kLanes];

  LG_INLINE void load(const Rows& rows, int active, int channels, int channel) {
    if (channels == kFewChannels) {
      gather_columns(rows.at, active * channels, columns);
      return;
    }
    for (int k = 0; k < active; ++k) {
      for (int i = 0; i < kLanes; ++i) columns[k * kLanes + i] = rows.at[i][k * channels + channel];
    }
  }
};

LG_END
