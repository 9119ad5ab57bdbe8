// Conversion of the numbers and named arrays of a Python call to the structs of params.h, for CPU and CUDA. The Python
// package checks everything before the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "common/bind_arrays.h"
#include "common/math/number.h"
#include "density/params.h"

LG_BEGIN_ENGINE(density)

inline Gaussians make_gaussians(const nanobind::kwargs& arrays) {
  Gaussians g{};
  CallArray<float> means;
  if (find_array(arrays, "means", means)) {
    g.count = static_cast<int32_t>(means.shape(0));
    g.means = means.data();
  }
  g.quats = find<float>(arrays, "quats");
  g.scales = find<float>(arrays, "scales");
  g.opacities = find<float>(arrays, "opacities");
  return g;
}

inline Observed make_observed(const nanobind::kwargs& arrays, float scale_x, float scale_y, float inverse_extent) {
  Observed o{0, 0, 0, nullptr, find<int32_t>(arrays, "seen"), {scale_x, scale_y, 1.0f}, inverse_extent};
  CallArray<float> gradient;
  if (find_array(arrays, "gradient", gradient)) {
    o.views = static_cast<int32_t>(gradient.shape(0));
    o.count = static_cast<int32_t>(gradient.shape(1));
    o.axes = static_cast<int32_t>(gradient.shape(2));
    o.gradient = gradient.data();
  }
  return o;
}

inline Statistics make_statistics(const nanobind::kwargs& arrays) {
  return {find<float>(arrays, "to_gradient"), find<int32_t>(arrays, "to_views"), find<float>(arrays, "to_radii")};
}

inline Candidates make_candidates(const nanobind::kwargs& arrays) {
  Candidates c{};
  CallArray<float> sizes;
  if (find_array(arrays, "sizes", sizes)) {
    c.count = static_cast<int32_t>(sizes.shape(0));
    c.axes = sizes.ndim() == 2 ? static_cast<int32_t>(sizes.shape(1)) : 1;
    c.sizes = sizes.data();
  }
  c.opacities = find<float>(arrays, "opacities");
  c.statistics = make_statistics(arrays);
  return c;
}

// The columns that copy rows of each tensor of `before` to the tensor of `after`.
inline std::vector<Column> make_columns(const nanobind::list& before, const nanobind::list& after,
                                        const std::vector<bool>& fresh) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const CallArray<float> from(before[i]), to(after[i]);
    columns.push_back({from.data(), to.data(), static_cast<int32_t>(from.row_size()), fresh[i]});
  }
  return columns;
}

inline Generation make_generation(int32_t kept, const nanobind::kwargs& arrays) {
  CallArray<int32_t> sources;
  if (!find_array(arrays, "sources", sources)) return {0, kept, nullptr};
  return {static_cast<int32_t>(sources.shape(0)), kept, sources.data()};
}

inline Children make_children(int32_t first, int32_t count, bool revise_opacity, const nanobind::kwargs& arrays) {
  return {first,
          count,
          find<int32_t>(arrays, "sources"),
          revise_opacity,
          find<float>(arrays, "quats"),
          find<float>(arrays, "means"),
          find<float>(arrays, "sizes"),
          find<float>(arrays, "opacities")};
}

inline Weights make_weights(const nanobind::kwargs& arrays) {
  return {reinterpret_cast<uint64_t*>(find<int64_t>(arrays, "sums")), find<int32_t>(arrays, "excluded"),
          find<int32_t>(arrays, "excluded_count")};
}

inline Sample make_sample(const nanobind::kwargs& arrays) {
  Sample s{};
  CallArray<int32_t> rows, shares;
  if (find_array(arrays, "rows", rows)) {
    s.draws = static_cast<int32_t>(rows.shape(0));
    s.rows = rows.data();
  }
  if (find_array(arrays, "shares", shares)) {
    s.count = static_cast<int32_t>(shares.shape(0));
    s.shares = shares.data();
  }
  s.sums = reinterpret_cast<const uint64_t*>(find<int64_t>(arrays, "sums"));
  return s;
}

inline Shared make_shared(float low, float high, const nanobind::kwargs& arrays) {
  Shared s{0, nullptr, find<float>(arrays, "opacities"), find<float>(arrays, "scales"), low, high};
  CallArray<int32_t> shares;
  if (find_array(arrays, "shares", shares)) {
    s.count = static_cast<int32_t>(shares.shape(0));
    s.shares = shares.data();
  }
  return s;
}

inline Moves make_moves(const nanobind::kwargs& arrays) {
  CallArray<int32_t> sources;
  if (!find_array(arrays, "sources", sources)) return {};
  return {static_cast<int32_t>(sources.shape(0)), sources.data(), find<int32_t>(arrays, "targets")};
}

// Rows of four numbers.
template <class T>
struct RandomRows {
  int64_t count;
  T* values;
};

template <class T>
inline RandomRows<T> make_random_rows(const nanobind::kwargs& arrays) {
  CallArray<T> rows;
  if (!find_array(arrays, "rows", rows)) return {0, nullptr};
  return {static_cast<int64_t>(rows.shape(0)), rows.data()};
}

LG_END
