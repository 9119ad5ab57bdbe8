// Sums of gradients until they are written, for sixteen Gaussians and for the views.
#pragma once

#include <cstring>

#include "gaussians/cpu/gaussians.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/project_backward.h"

LG_BEGIN_ENGINE(gaussians)

// The gradients of sixteen Gaussians from all views, by column.
struct Columns {
  alignas(64) float mean[3 * kLanes], quat[4 * kLanes], scale[3 * kLanes], covariance[6 * kLanes], opacity[kLanes];
  float* colors;  // [width, 16], or null if not requested
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

// Writes columns, or zeros if null, to rows [first, first + used) of an array, unless the array is null.
inline void write_rows(float* array, const float* columns, int64_t first, int used, int width) {
  if (array == nullptr) return;
  float* to = array + first * width;
  const auto c = [&](int f) { return column(columns, f); };
  if (columns == nullptr) {
    std::memset(to, 0, sizeof(float) * static_cast<std::size_t>(used) * width);
  } else if (width == 1 && used == kLanes) {
    store_unaligned(c(0), to);
  } else if (width == 3 && used == kLanes) {
    interleave_3(c(0), c(1), c(2), to);
  } else if (width == 4 && used == kLanes) {
    interleave_4(c(0), c(1), c(2), c(3), to);
  } else {
    float* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = to + (i < used ? i : 0) * width;
    const bool streaming = width % kLanes == 0 && reinterpret_cast<uintptr_t>(array) % 64 == 0;
    scatter_columns(columns, width, rows, used, streaming);
  }
}

inline void write_columns(const Gradients& to, const Columns* c, bool harmonics, int width, int64_t first, int used) {
  write_rows(to.means, c != nullptr ? c->mean : nullptr, first, used, 3);
  write_rows(to.quats, c != nullptr ? c->quat : nullptr, first, used, 4);
  write_rows(to.scales, c != nullptr ? c->scale : nullptr, first, used, 3);
  write_rows(to.covariances, c != nullptr ? c->covariance : nullptr, first, used, 6);
  write_rows(to.opacities, c != nullptr ? c->opacity : nullptr, first, used, 1);
  write_rows(harmonics ? to.sh : to.colors, c != nullptr ? c->colors : nullptr, first, used, width);
}

// Sums over the Gaussians for a view: its poses, its intrinsics, Inria's projection, and a sensor's lens and motion.
inline constexpr int kIntrinsics = 4, kProjection = 12;

struct ViewSums {
  double* poses;       // [slices, kPoseSums]
  double* intrinsics;  // [4]
  double* projection;  // [12]
  double* sensor;      // [kSensorSums], if the views are sensors
  double* normals;     // [slices, 9], see Gradients::normals

  static int doubles(const Scene& scene) {
    const int own = kIntrinsics + kProjection + (scene.sensors != nullptr ? kSensorSums : 0);
    return scene.slices * (kPoseSums + kRotationFloats) + own;
  }

  ViewSums(double* sums, const Scene& scene, int view) {
    poses = sums + static_cast<int64_t>(view) * doubles(scene);
    normals = poses + scene.slices * kPoseSums;
    intrinsics = normals + scene.slices * kRotationFloats;
    projection = intrinsics + kIntrinsics;
    sensor = projection + kProjection;
  }
};

LG_INLINE void add_sum(double* to, MaskPack mask, Pack value) {
  *to += static_cast<double>(sum(zero_unless(mask, value)));
}

LG_INLINE void add_view_sums(const ViewSums& sums, int slice, MaskPack mask, const GaussianGradient<Pack>& g,
                             const Triple<Pack>& v_direction, const Triple<Pack>& v_h, const Triple<Pack>& mean,
                             bool projected) {
  double* pose = sums.poses + slice * kPoseSums;
  const Matrix<Pack>& r = g.rotation;
  const Pack rotation[9] = {r.x.x, r.x.y, r.x.z, r.y.x, r.y.y, r.y.z, r.z.x, r.z.y, r.z.z};
  for (int i = 0; i < 9; ++i) add_sum(pose + i, mask, rotation[i]);
  add_sum(pose + 9, mask, g.translation.x);
  add_sum(pose + 10, mask, g.translation.y);
  add_sum(pose + 11, mask, g.translation.z);
  add_sum(pose + 12, mask, -v_direction.x);
  add_sum(pose + 13, mask, -v_direction.y);
  add_sum(pose + 14, mask, -v_direction.z);
  const Pack intrinsics[kIntrinsics] = {g.fx, g.fy, g.cx, g.cy};
  for (int i = 0; i < kIntrinsics; ++i) add_sum(sums.intrinsics + i, mask, intrinsics[i]);
  if (!projected) return;
  const Pack h[3] = {v_h.x, v_h.y, v_h.z}, point[4] = {mean.x, mean.y, mean.z, Pack(1.0f)};
  for (int i = 0; i < kProjection; ++i) add_sum(sums.projection + i, mask, h[i / 4] * point[i % 4]);
}

// Adds the gradient of a slice's rotation through the normals of surfels: `v` is the gradient of a normal in the world,
// `normal` the normal in the slice's frame.
LG_INLINE void add_normal_sums(const ViewSums& sums, int slice, MaskPack mask, const Triple<Pack>& v,
                               const Triple<Pack>& normal) {
  const Matrix<Pack> m = outer(v, normal);
  const Pack nine[kRotationFloats] = {m.x.x, m.x.y, m.x.z, m.y.x, m.y.y, m.y.z, m.z.x, m.z.y, m.z.z};
  for (int i = 0; i < kRotationFloats; ++i) add_sum(sums.normals + slice * kRotationFloats + i, mask, nine[i]);
}

// Sums the parts' sums, in the order of the parts.
inline void write_view_sums(const Scene& scene, int view_count, const Gradients& to, const double* sums, int parts,
                            int part_doubles) {
  const int poses = scene.slices * kPoseSums, normals = scene.slices * kRotationFloats, first = poses + normals;
  const int per_view = ViewSums::doubles(scene);
  for (int v = 0; v < view_count; ++v) {
    const auto total = [&](int index) {
      double sum = 0.0;
      for (int p = 0; p < parts; ++p) sum += sums[static_cast<int64_t>(p) * part_doubles + v * per_view + index];
      return sum;
    };
    const auto write = [&](double* array, int first, int count) {
      if (array == nullptr) return;
      for (int i = 0; i < count; ++i) array[v * count + i] = total(first + i);
    };
    write(to.poses, 0, poses);
    write(to.normals, poses, normals);
    write(to.intrinsics, first, kIntrinsics);
    write(to.projection, first + kIntrinsics, kProjection);
    write(to.sensors, first + kIntrinsics + kProjection, kSensorSums);
  }
}

LG_END
