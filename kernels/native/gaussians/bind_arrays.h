// Conversion of the named arrays of a Python call to the structs of params.h, for CPU and CUDA. The Python package
// checks every array before the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <utility>
#include <vector>

#include "common/bind_arrays.h"
#include "common/math/number.h"
#include "gaussians/packed.h"
#include "gaussians/params.h"
#include "gaussians/visits.h"

namespace lumigrad::gaussians {

// The views of a call, and the slices of the scene with their poses; host memory.
struct Views {
  std::vector<View> views;
  std::vector<int32_t> slice_begins;
  std::vector<Pose> poses;
  std::vector<Sensor> sensors;  // One per view, or empty.
  std::vector<SlicePose> slice_poses;
  int32_t moving_slices = 0;

  int count() const { return static_cast<int>(views.size()); }
};

}  // namespace lumigrad::gaussians

LG_BEGIN_ENGINE(gaussians)

inline Scene make_scene(const Views& views, const nanobind::kwargs& arrays) {
  Scene s{};
  CallArray<float> opacities, sh, colors;
  if (find_array(arrays, "opacities", opacities)) {
    s.scenes = static_cast<int32_t>(opacities.shape(0));
    s.count = static_cast<int32_t>(opacities.shape(1));
    s.opacities = opacities.data();
  }
  if (find_array(arrays, "sh", sh)) {
    s.coefficients = static_cast<int32_t>(sh.shape(2));
    s.channels = static_cast<int32_t>(sh.shape(3));
    s.sh = sh.data();
  }
  if (find_array(arrays, "colors", colors)) {
    s.channels = static_cast<int32_t>(colors.shape(2));
    // The two layouts are the same if there are as many views as scenes.
    s.colors_per_view = static_cast<int32_t>(colors.shape(0)) != s.scenes;
    s.colors = colors.data();
  }
  s.means = find<float>(arrays, "means");
  s.quats = find<float>(arrays, "quats");
  s.scales = find<float>(arrays, "scales");
  s.covariances = find<float>(arrays, "covariances");
  s.background = find<float>(arrays, "background");
  s.slices = static_cast<int32_t>(views.slice_begins.size()) - 1;
  s.slice_begins = views.slice_begins.data();
  s.poses = views.poses.data();
  s.sensors = views.sensors.empty() ? nullptr : views.sensors.data();
  s.slice_poses = views.slice_poses.data();
  s.moving_slices = views.moving_slices;
  s.rays = find<float>(arrays, "rays");
  s.lidar_angles = find<double>(arrays, "lidar_angles");
  return s;
}

inline Outputs make_outputs(const nanobind::kwargs& arrays) {
  Outputs o{};
  o.color = find<float>(arrays, "color");
  o.color_levels = find<uint8_t>(arrays, "color_levels");
  o.alpha = find<float>(arrays, "alpha");
  o.transmittance = find<float>(arrays, "transmittance");
  o.depth = find<float>(arrays, "depth");
  o.expected_depth = find<float>(arrays, "expected_depth");
  o.inverse_depth = find<float>(arrays, "inverse_depth");
  o.hit_distance = find<float>(arrays, "hit_distance");
  o.expected_hit_distance = find<float>(arrays, "expected_hit_distance");
  o.normals = find<float>(arrays, "normals");
  o.median_depth = find<float>(arrays, "median_depth");
  o.distortion = find<float>(arrays, "distortion");
  o.contributors = find<int32_t>(arrays, "contributors");
  o.radii = find<int32_t>(arrays, "radii");
  o.means2d = find<float>(arrays, "means2d");
  o.depths = find<float>(arrays, "depths");
  o.conics = find<float>(arrays, "conics");
  o.projected_opacities = find<float>(arrays, "projected_opacities");
  return o;
}

inline Visits make_visits(const nanobind::kwargs& arrays) {
  return {find<uint8_t>(arrays, "visited"), find<int32_t>(arrays, "closers")};
}

inline Upstream make_upstream(const nanobind::kwargs& arrays) {
  Upstream u{};
  u.color = find<float>(arrays, "color");
  u.transmittance = find<float>(arrays, "transmittance");
  u.depth = find<float>(arrays, "depth");
  u.inverse_depth = find<float>(arrays, "inverse_depth");
  u.hit_distance = find<float>(arrays, "hit_distance");
  u.normals = find<float>(arrays, "normals");
  u.distortion = find<float>(arrays, "distortion");
  u.d_color = find<float>(arrays, "d_color");
  u.d_alpha = find<float>(arrays, "d_alpha");
  u.d_transmittance = find<float>(arrays, "d_transmittance");
  u.d_depth = find<float>(arrays, "d_depth");
  u.d_expected_depth = find<float>(arrays, "d_expected_depth");
  u.d_inverse_depth = find<float>(arrays, "d_inverse_depth");
  u.d_hit_distance = find<float>(arrays, "d_hit_distance");
  u.d_expected_hit_distance = find<float>(arrays, "d_expected_hit_distance");
  u.d_normals = find<float>(arrays, "d_normals");
  u.d_median_depth = find<float>(arrays, "d_median_depth");
  u.d_distortion = find<float>(arrays, "d_distortion");
  u.d_means2d = find<float>(arrays, "d_means2d");
  return u;
}

inline Gradients make_gradients(const nanobind::kwargs& arrays) {
  Gradients g{};
  g.means = find<float>(arrays, "to_means");
  g.quats = find<float>(arrays, "to_quats");
  g.scales = find<float>(arrays, "to_scales");
  g.covariances = find<float>(arrays, "to_covariances");
  g.opacities = find<float>(arrays, "to_opacities");
  g.sh = find<float>(arrays, "to_sh");
  g.sh_factors = find<float>(arrays, "to_sh_factors");
  g.colors = find<float>(arrays, "to_colors");
  g.background = find<float>(arrays, "to_background");
  g.means2d = find<float>(arrays, "to_means2d");
  g.means2d_abs = find<float>(arrays, "to_means2d_abs");
  g.touched = find<int32_t>(arrays, "touched");
  g.poses = find<double>(arrays, "to_poses");
  g.normals = find<double>(arrays, "to_normals");
  g.intrinsics = find<double>(arrays, "to_intrinsics");
  g.projection = find<double>(arrays, "to_projection");
  g.sensors = find<double>(arrays, "to_sensors");
  g.inverse_windshield = find<double>(arrays, "to_inverse_windshield");
  g.rays = find<float>(arrays, "to_rays");
  g.lidar_angles = find<float>(arrays, "to_lidar_angles");
  return g;
}

// Blocks of rows of Gaussians, each with its number of rows.
using Counted = std::vector<std::pair<nanobind::object, int64_t>>;

inline std::vector<RowBlock> make_blocks(const Counted& given, bool packed) {
  std::vector<RowBlock> blocks;
  for (const auto& [rows, count] : given) {
    if (packed) {
      const CallArray<uint8_t> bytes(rows);
      blocks.push_back({bytes.data(), nullptr, count, static_cast<int64_t>(bytes.size())});
    } else {
      blocks.push_back({nullptr, CallArray<float>(rows).data(), count, 0});
    }
  }
  return blocks;
}

inline UnpackedRows make_rows(const nanobind::kwargs& arrays) {
  UnpackedRows rows{find<float>(arrays, "means"),
                    find<float>(arrays, "quats"),
                    find<float>(arrays, "scales"),
                    find<float>(arrays, "opacities"),
                    nullptr,
                    0};
  if (CallArray<float> sh; find_array(arrays, "sh", sh)) {
    rows.sh = sh.data();
    rows.coefficients = static_cast<int>(sh.shape(1));
  }
  return rows;
}

LG_END
