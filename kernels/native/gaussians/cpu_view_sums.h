// Sums over the Gaussians of what belongs to a view: its poses, its intrinsics and Inria's projection.
#pragma once

#include "gaussians/cpu_view.h"
#include "gaussians/math_project_backward.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr int kIntrinsics = 4, kProjection = 12;

struct ViewSums {
  double* poses;       // [slices, kPoseFloats]
  double* intrinsics;  // [4]
  double* projection;  // [12]

  static int doubles(const Scene& scene) { return scene.slices * kPoseFloats + kIntrinsics + kProjection; }

  ViewSums(double* sums, const Scene& scene, int view) {
    poses = sums + static_cast<int64_t>(view) * doubles(scene);
    intrinsics = poses + scene.slices * kPoseFloats;
    projection = intrinsics + kIntrinsics;
  }
};

LG_INLINE void add_sum(double* to, MaskPack mask, Pack value) {
  *to += static_cast<double>(sum(zero_unless(mask, value)));
}

LG_INLINE void add_view_sums(const ViewSums& sums, int slice, MaskPack mask, const GaussianGradient<Pack>& g,
                             const Triple<Pack>& v_direction, const Triple<Pack>& v_h, const Triple<Pack>& mean,
                             bool projected) {
  double* pose = sums.poses + slice * kPoseFloats;
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

// Adds the parts' sums up, in their order.
inline void write_view_sums(const Scene& scene, int view_count, const Gradients& to, const double* sums, int parts,
                            int part_doubles) {
  const int poses = scene.slices * kPoseFloats, per_view = ViewSums::doubles(scene);
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
    write(to.intrinsics, poses, kIntrinsics);
    write(to.projection, poses + kIntrinsics, kProjection);
  }
}

LG_END
