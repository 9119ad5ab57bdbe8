// What sixteen Gaussians receive from all views, by column, until it is written to the gradients.
#pragma once

#include <cstring>

#include "gaussians/cpu_gaussians.h"

LG_BEGIN_ENGINE(gaussians)

struct Columns {
  alignas(64) float mean[3 * kLanes], quat[4 * kLanes], scale[3 * kLanes], covariance[6 * kLanes], opacity[kLanes];
  float* colors;  // [width, 16], or null if they are not wanted
  int width;      // Coefficients times channels, or channels.

  void clear() {
    std::memset(this, 0, offsetof(Columns, colors));
    if (colors != nullptr) std::memset(colors, 0, sizeof(float) * kLanes * static_cast<std::size_t>(width));
  }
};

LG_INLINE void add_column(float* columns, int f, MaskPack mask, Pack value) {
  add_where(mask, column(columns, f), value).store(columns + f * kLanes);
}
LG_INLINE void add_triple(float* columns, MaskPack mask, const Triple<Pack>& v) {
  add_column(columns, 0, mask, v.x);
  add_column(columns, 1, mask, v.y);
  add_column(columns, 2, mask, v.z);
}

// Columns, or zeros where there are none, into rows [first, first + used) of an array that may not be wanted.
inline void write_rows(float* array, const float* columns, int64_t first, int used, int width) {
  if (array == nullptr) return;
  if (columns == nullptr) {
    std::memset(array + first * width, 0, sizeof(float) * static_cast<std::size_t>(used) * width);
    return;
  }
  float* rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = array + (first + (i < used ? i : 0)) * width;
  const bool streaming = width % kLanes == 0 && reinterpret_cast<uintptr_t>(array) % 64 == 0;
  scatter_columns(columns, width, rows, used, streaming);
}

inline void write_columns(const Gradients& to, const Columns* c, bool harmonics, int width, int64_t first, int used) {
  write_rows(to.means, c != nullptr ? c->mean : nullptr, first, used, 3);
  write_rows(to.quats, c != nullptr ? c->quat : nullptr, first, used, 4);
  write_rows(to.scales, c != nullptr ? c->scale : nullptr, first, used, 3);
  write_rows(to.covariances, c != nullptr ? c->covariance : nullptr, first, used, 6);
  write_rows(to.opacities, c != nullptr ? c->opacity : nullptr, first, used, 1);
  write_rows(harmonics ? to.sh : to.colors, c != nullptr ? c->colors : nullptr, first, used, width);
}

LG_END
