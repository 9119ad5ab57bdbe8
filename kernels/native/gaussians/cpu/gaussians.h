// Sixteen Gaussians as packs.
#pragma once

#include <utility>

#include "common/cpu/transpose.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/project.h"
#include "gaussians/math/sh.h"

LG_BEGIN_ENGINE(gaussians)

LG_INLINE Pack column(const float* columns, int f) { return Pack::load(columns + f * kLanes); }

// Up to sixteen rows of an array [N, kWidth], by column; lanes past the last repeat it.
template <int kWidth>
struct RowPacks {
  Pack at[kWidth];

  LG_INLINE RowPacks(const float* rows, int64_t first, int used) {
    const float* from = rows + first * kWidth;
    alignas(64) float copy[kWidth * kLanes];
    if (used < kLanes) {
      for (int i = 0; i < kLanes; ++i) {
        memcpy(copy + i * kWidth, from + (i < used ? i : used - 1) * kWidth, sizeof(float) * kWidth);
      }
      from = copy;
    }
    if constexpr (kWidth == 1) {
      at[0] = load_unaligned(from);
    } else if constexpr (kWidth == 3) {
      deinterleave_3(from, at[0], at[1], at[2]);
    } else if constexpr (kWidth == 4) {
      deinterleave_4(from, at[0], at[1], at[2], at[3]);
    } else {
      alignas(64) float columns[kWidth * kLanes];
      for (int i = 0; i < kLanes; ++i) {
        for (int f = 0; f < kWidth; ++f) columns[f * kLanes + i] = from[i * kWidth + f];
      }
      for (int f = 0; f < kWidth; ++f) at[f] = column(columns, f);
    }
  }
};

template <bool kCovariance>
LG_INLINE Gaussian<Pack> load_gaussians(const Scene& scene, int64_t first, int used) {
  Gaussian<Pack> g;
  const RowPacks<3> mean(scene.means, first, used);
  g.mean = {mean.at[0], mean.at[1], mean.at[2]};
  g.opacity = RowPacks<1>(scene.opacities, first, used).at[0];
  const Pack zero = Pack(0.0f);
  if constexpr (kCovariance) {
    const RowPacks<6> c(scene.covariances, first, used);
    g.covariance = {c.at[0], c.at[1], c.at[2], c.at[3], c.at[4], c.at[5]};
    g.quaternion = {zero, zero, zero, zero};
    g.scale = {zero, zero, zero};
  } else {
    const RowPacks<4> q(scene.quats, first, used);
    g.quaternion = {q.at[0], q.at[1], q.at[2], q.at[3]};
    const RowPacks<3> scale(scene.scales, first, used);
    g.scale = {scale.at[0], scale.at[1], scale.at[2]};
    g.covariance = {zero, zero, zero, zero, zero, zero};
  }
  return g;
}

// The rows of an array [N, width] of up to sixteen Gaussians; lanes past the last repeat it.
struct Rows {
  const float* at[kLanes];

  LG_INLINE Rows(const float* array, int64_t first, int64_t width, int used) {
    const float* row = array + first * width;
    for (int i = 0; i < kLanes; ++i) {
      at[i] = row;
      if (i + 1 < used) row += width;
    }
  }
};

// Calls visit(f, column) for the first kCount columns of rows; f is a std::integral_constant. The columns stay in
// registers: storing and reloading them would collide with the loads of the rows.
template <int kCount, int kFirst = 0, class Visit>
LG_INLINE void each_column(const Rows& rows, const Visit& visit) {
  constexpr int kHere = kCount - kFirst < kLanes ? kCount - kFirst : kLanes;
  Pack r[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) r[i] = load_first<kHere>(rows.at[i] + kFirst);
  transpose_16(r);
  [&]<int... kAt>(std::integer_sequence<int, kAt...>) {
    (visit(std::integral_constant<int, kFirst + kAt>(), r[kAt]), ...);
  }(std::make_integer_sequence<int, kHere>());
  if constexpr (kFirst + kHere < kCount) each_column<kCount, kFirst + kHere>(rows, visit);
}

// Prefetches the harmonics of sixteen Gaussians while the previous ones are computed, into the second-level cache: that
// many lines would block loads from the first level.
LG_INLINE void prefetch_harmonics(const Scene& scene, int64_t first) {
  const int64_t width = static_cast<int64_t>(scene.coefficients) * scene.channels;
  if (scene.sh == nullptr || first + kLanes > static_cast<int64_t>(scene.count) * scene.scenes) return;
#pragma GCC unroll 8
  for (int64_t f = 0; f < kLanes * width; f += 16) __builtin_prefetch(scene.sh + first * width + f, 0, 2);
}

inline constexpr int kFewChannels = 3;

// Coefficients of one channel of spherical harmonics: column k is coefficient k.
struct Coefficients {
  alignas(64) float columns[kMaxCoefficients * kLanes];

  LG_INLINE void load(const Rows& rows, int active, int channels, int channel) {
    for (int k = 0; k < active; ++k) {
      for (int i = 0; i < kLanes; ++i) columns[k * kLanes + i] = rows.at[i][k * channels + channel];
    }
  }
};

LG_END
