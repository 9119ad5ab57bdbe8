// From the sums over pixels to the gradients of the scene and of the views, sixteen Gaussians at a time: the views of a
// scene are added up before anything is written.
#include <cstring>

#include "gaussians/cpu_bands.h"
#include "gaussians/cpu_gaussians.h"
#include "gaussians/math_project_backward.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// Sums per view and slice: the pose, as params.h orders it; per view: intrinsics and Inria's projection.
constexpr int kIntrinsics = 4, kProjection = 12;

struct ViewSums {
  double* poses;       // [slices, kPoseFloats]
  double* intrinsics;  // [4]
  double* projection;  // [12]
};

struct Task {
  const View* views;
  int view_count;
  const Settings& settings;
  const Scene& scene;
  const Upstream& up;
  const Gradients& to;
  const ViewData* data;  // [V]
  const RowData* rows;   // [V]
  bool poses;            // Sums over the Gaussians are wanted.
};

// What sixteen Gaussians receive from all views, by column.
struct Columns {
  alignas(64) float mean[3 * kLanes], quat[4 * kLanes], scale[3 * kLanes], covariance[6 * kLanes], opacity[kLanes];
  float* colors;  // [coefficients * channels or channels, 16]
};

LG_INLINE void add_column(float* columns, int f, MaskPack mask, Pack value) {
  add_where(mask, column(columns, f), value).store(columns + f * kLanes);
}
LG_INLINE void add_triple(float* columns, MaskPack mask, const Triple<Pack>& v) {
  add_column(columns, 0, mask, v.x);
  add_column(columns, 1, mask, v.y);
  add_column(columns, 2, mask, v.z);
}

// Rows of sums of the Gaussians in `mask`, by column; zero elsewhere.
LG_INLINE void load_sums(const RowData& rows, int64_t local, unsigned mask, Pack fields[kRecordFloats]) {
  for (int i = 0; i < kLanes; ++i) {
    fields[i] = (mask >> i & 1u) != 0 ? Pack::load(rows.rows + (local + i) * kRecordFloats) : Pack(0.0f);
  }
  transpose_16(fields);
}

// The gradient of feature f of the Gaussians in `mask`.
LG_INLINE Pack feature_gradient(const RowData& rows, const Features& features, const Pack* fields, int64_t local,
                                unsigned mask, int f) {
  if (rows.feature_rows == nullptr) return fields[gradient_row::kFeatures + f];
  alignas(64) float lanes[kLanes] = {};
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    lanes[i] = rows.feature_rows[(local + i) * features.total() + f];
  }
  return Pack::load(lanes);
}

// Sixteen Gaussians as one view sees them.
struct Sight {
  const Task& task;
  int view;
  int slice;
  int64_t local;  // Of the first, within its scene.
  int64_t first;  // The same among all scenes.
  unsigned mask;  // Those that receive something.
  const Pack* fields;
  LG_INLINE const ViewData& data() const { return task.data[view]; }
  LG_INLINE const Pose& pose() const {
    return task.scene.poses[static_cast<int64_t>(view) * task.scene.slices + slice];
  }
  LG_INLINE Pack feature(int f) const {
    return feature_gradient(task.rows[view], data().features, fields, local, mask, f);
  }
};

template <int kDegree>
LG_INLINE Triple<Pack> harmonics_backward(const Triple<Pack>& d, const float* columns, int step, Pack v,
                                          float* gradients) {
  Triple<Pack> to = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  each_harmonic<kDegree>(d, [&](int k, Pack value, const Triple<Pack>& slope) {
    const Pack along = column(columns, k * step) * v;
    to.x = fma(slope.x, along, to.x);
    to.y = fma(slope.y, along, to.y);
    to.z = fma(slope.z, along, to.z);
    if (gradients != nullptr) fma(value, v, column(gradients, k * step)).store(gradients + k * step * kLanes);
  });
  return to;
}

// Colours from harmonics: adds to their gradients, returns that of the direction.
Triple<Pack> colors_backward(const Sight& s, const Triple<Pack>& d, MaskPack mask, float* gradients) {
  const Scene& scene = s.task.scene;
  const int channels = scene.channels, degree = s.task.settings.sh_degree, active = (degree + 1) * (degree + 1);
  const bool few = channels == kFewChannels;
  const Rows rows(scene.sh, s.first, static_cast<int64_t>(scene.coefficients) * channels, s.mask);
  Coefficients coefficients;
  Triple<Pack> to = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  for (int c = 0; c < channels; ++c) {
    if (c == 0 || !few) coefficients.load(rows, active, channels, c);
    alignas(64) float shown[kLanes] = {};
    for (unsigned rest = s.mask; rest != 0; rest &= rest - 1) {
      const int i = __builtin_ctz(rest);
      shown[i] = s.data().features_of(static_cast<uint32_t>(s.local + i))[c];
    }
    // Nothing goes through a colour that was cut off at 0.
    const Pack v = zero_unless(mask & (Pack::load(shown) > Pack(0.0f)), s.feature(c));
    const float* columns = coefficients.columns + (few ? c * kLanes : 0);
    with_constant<kMaxDegree>(degree, [&](auto constant) {
      constexpr int kDegree = decltype(constant)::value;
      // With several channels the gradients lie as the coefficients do; one channel's are put there one by one.
      if (few) {
        to = to + harmonics_backward<kDegree>(d, columns, channels, v,
                                              gradients != nullptr ? gradients + c * kLanes : nullptr);
      } else {
        alignas(64) float own[kMaxCoefficients * kLanes] = {};
        to = to + harmonics_backward<kDegree>(d, columns, 1, v, own);
        if (gradients == nullptr) return;
        for (int k = 0; k < active; ++k) {
          float* at = gradients + (k * channels + c) * kLanes;
          (Pack::load(at) + column(own, k)).store(at);
        }
      }
    });
  }
  return to;
}

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

LG_INLINE void store_means2d(const Sight& s, int used, MaskPack mask, const Pair<Pack>& v) {
  const int64_t row = static_cast<int64_t>(s.view) * s.task.scene.count + s.local;
  const auto store = [&](Pack value, float* to) {
    alignas(64) float lanes[kLanes];
    zero_unless(mask, value).store(lanes);
    for (int i = 0; i < used; ++i) to[2 * i] = lanes[i];
  };
  if (s.task.to.means2d != nullptr) {
    store(v.x, s.task.to.means2d + 2 * row);
    store(v.y, s.task.to.means2d + 2 * row + 1);
  }
  if (s.task.to.means2d_abs != nullptr) {
    store(s.fields[gradient_row::kAbsX], s.task.to.means2d_abs + 2 * row);
    store(s.fields[gradient_row::kAbsY], s.task.to.means2d_abs + 2 * row + 1);
  }
}

template <Lens kLens, bool kCovariance>
void sight_backward(const Sight& s, const Gaussian<Pack>& gaussian, int used, const ViewSums& sums, Columns& to) {
  const Task& t = s.task;
  const View& view = t.views[s.view];
  const MaskPack mask = mask_from_bits(s.mask);
  PixelSums<Pack> pixel = {s.fields[0], s.fields[1], s.fields[2], s.fields[3],
                           s.fields[4], s.fields[5], Pack(0.0f),  {Pack(0.0f), Pack(0.0f)}};
  const Features& features = s.data().features;
  int next = features.colors;
  if (features.depth) pixel.depth = s.feature(next++);
  if (features.inverse_depth) {
    const Triple<Pack> row = {Pack(s.pose().rotation[6]), Pack(s.pose().rotation[7]), Pack(s.pose().rotation[8])};
    const Pack inverse = Pack(1.0f) / (dot(row, gaussian.mean) + Pack(s.pose().translation[2]));
    pixel.depth = fma(-s.feature(next), inverse * inverse, pixel.depth);
  }
  if (t.up.d_means2d != nullptr) {
    alignas(64) float c[2 * kLanes];
    load_columns(t.up.d_means2d, static_cast<int64_t>(s.view) * t.scene.count + s.local, used, 2, c);
    pixel.extra = {column(c, 0), column(c, 1)};
  }
  Triple<Pack> v_h;
  const GaussianGradient<Pack> g =
      project_backward<kLens, kCovariance>(view, s.pose(), t.settings, gaussian, pixel, v_h);
  Triple<Pack> v_direction = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  if (t.scene.sh != nullptr && features.colors > 0) {
    const Direction<Pack> direction = direction_to(s.pose(), gaussian.mean);
    v_direction = direction_backward(direction, colors_backward(s, direction.d, mask, to.colors));
  } else if (features.colors > 0 && to.colors != nullptr && !t.scene.colors_per_view) {
    for (int c = 0; c < t.scene.channels; ++c) add_column(to.colors, c, mask, s.feature(c));
  }
  add_triple(to.mean, mask, g.mean + v_direction);
  add_column(to.opacity, 0, mask, g.opacity);
  if constexpr (kCovariance) {
    const Symmetric<Pack>& m = g.covariance;
    const Pack six[6] = {m.xx, m.xy, m.xz, m.yy, m.yz, m.zz};
    for (int i = 0; i < 6; ++i) add_column(to.covariance, i, mask, six[i]);
  } else {
    const Quaternion<Pack>& q = g.quaternion;
    const Pack four[4] = {q.w, q.x, q.y, q.z};
    for (int i = 0; i < 4; ++i) add_column(to.quat, i, mask, four[i]);
    add_triple(to.scale, mask, g.scale);
  }
  store_means2d(s, used, mask, g.mean2d);
  if (t.poses) add_view_sums(sums, s.slice, mask, g, v_direction, v_h, gaussian.mean, view.projected != 0);
}

// The Gaussians of the chunk that a view sends something to.
LG_INLINE unsigned receivers(const Task& t, int view, int64_t local, int used) {
  unsigned mask = 0;
  const bool extra = t.up.d_means2d != nullptr;
  for (int i = 0; i < used; ++i) {
    const bool touched = t.rows[view].touched[local + i] != 0;
    const bool visible = !is_culled(t.data[view].rectangles[local + i]);
    mask |= static_cast<unsigned>(touched || (extra && visible)) << i;
  }
  return mask;
}

struct Part {
  float* color_columns;
  double* sums;  // Of all views.
};

LG_INLINE ViewSums view_sums(const Task& t, double* sums, int view) {
  const int per_view = t.scene.slices * kPoseFloats + kIntrinsics + kProjection;
  double* own = sums + static_cast<int64_t>(view) * per_view;
  return {own, own + t.scene.slices * kPoseFloats, own + t.scene.slices * kPoseFloats + kIntrinsics};
}

// Gradients of colours that are given for each view.
void write_view_colors(const Sight& s, int used) {
  const Task& t = s.task;
  if (t.to.colors == nullptr || !t.scene.colors_per_view) return;
  const int channels = t.scene.channels;
  float* to = t.to.colors + (static_cast<int64_t>(s.view) * t.scene.count + s.local) * channels;
  for (int c = 0; c < channels; ++c) {
    alignas(64) float lanes[kLanes] = {};
    if (s.mask != 0 && s.data().features.colors > 0) zero_unless(mask_from_bits(s.mask), s.feature(c)).store(lanes);
    for (int i = 0; i < used; ++i) to[i * channels + c] = lanes[i];
  }
}

void write_rows(float* array, const float* columns, int64_t first, int used, int width) {
  if (array == nullptr) return;
  float* rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = array + (first + (i < used ? i : 0)) * width;
  const bool streaming = width % kLanes == 0 && reinterpret_cast<uintptr_t>(array) % 64 == 0;
  scatter_columns(columns, width, rows, used, streaming);
}

// Colour gradients of Gaussians that receive none.
void clear_rows(float* array, int64_t first, int used, int width) {
  if (array == nullptr) return;
  std::memset(array + first * width, 0, sizeof(float) * static_cast<std::size_t>(used) * width);
}

template <bool kCovariance>
void chunk_backward(const Task& t, int scene_number, int slice, int64_t local, int used, const Part& part) {
  const Scene& scene = t.scene;
  const int64_t first = static_cast<int64_t>(scene_number) * scene.count + local;
  const int width = scene.sh != nullptr ? scene.coefficients * scene.channels : scene.channels;
  const bool colors = scene.sh != nullptr ? t.to.sh != nullptr : t.to.colors != nullptr && !scene.colors_per_view;
  Columns columns;
  columns.colors = colors ? part.color_columns : nullptr;
  unsigned any_view = 0;
  Gaussian<Pack> gaussian;
  for (int v = 0; v < t.view_count; ++v) {
    if (t.views[v].scene != scene_number) continue;
    const unsigned mask = receivers(t, v, local, used);
    Pack fields[kRecordFloats];
    Sight sight{t, v, slice, local, first, mask, fields};
    if (mask == 0) {
      for (int f = 0; f < kRecordFloats; ++f) fields[f] = Pack(0.0f);
      store_means2d(sight, used, mask_from_bits(0), {Pack(0.0f), Pack(0.0f)});
      write_view_colors(sight, used);
      continue;
    }
    if (any_view == 0) {
      gaussian = load_gaussians<kCovariance>(scene, first, used);
      std::memset(&columns, 0, offsetof(Columns, colors));
      if (colors) std::memset(columns.colors, 0, sizeof(float) * kLanes * static_cast<std::size_t>(width));
    }
    any_view |= mask;
    unsigned touched = 0;
    for (int i = 0; i < used; ++i) touched |= static_cast<unsigned>(t.rows[v].touched[local + i] != 0) << i;
    load_sums(t.rows[v], local, touched, fields);
    sight.mask = mask;
    with_lens(t.views[v], [&](auto lens) {
      sight_backward<decltype(lens)::value, kCovariance>(sight, gaussian, used, view_sums(t, part.sums, v), columns);
    });
    write_view_colors(sight, used);
  }
  if (t.to.touched != nullptr) {
    for (int i = 0; i < used; ++i) t.to.touched[first + i] = static_cast<int32_t>(any_view >> i & 1u);
  }
  if (any_view == 0) {
    clear_rows(t.to.means, first, used, 3);
    clear_rows(t.to.quats, first, used, 4);
    clear_rows(t.to.scales, first, used, 3);
    clear_rows(t.to.covariances, first, used, 6);
    clear_rows(t.to.opacities, first, used, 1);
    if (colors) clear_rows(scene.sh != nullptr ? t.to.sh : t.to.colors, first, used, width);
    return;
  }
  write_rows(t.to.means, columns.mean, first, used, 3);
  write_rows(t.to.quats, columns.quat, first, used, 4);
  write_rows(t.to.scales, columns.scale, first, used, 3);
  write_rows(t.to.covariances, columns.covariance, first, used, 6);
  write_rows(t.to.opacities, columns.opacity, first, used, 1);
  if (colors) write_rows(scene.sh != nullptr ? t.to.sh : t.to.colors, columns.colors, first, used, width);
}

void write_sums(const Task& t, const double* sums, int parts, int part_doubles) {
  const int poses = t.scene.slices * kPoseFloats, per_view = poses + kIntrinsics + kProjection;
  for (int v = 0; v < t.view_count; ++v) {
    const auto total = [&](int index) {
      double sum = 0.0;
      for (int p = 0; p < parts; ++p) sum += sums[static_cast<int64_t>(p) * part_doubles + v * per_view + index];
      return sum;
    };
    for (int i = 0; t.to.poses != nullptr && i < poses; ++i) t.to.poses[v * poses + i] = total(i);
    for (int i = 0; t.to.intrinsics != nullptr && i < kIntrinsics; ++i) {
      t.to.intrinsics[v * kIntrinsics + i] = total(poses + i);
    }
    for (int i = 0; t.to.projection != nullptr && i < kProjection; ++i) {
      t.to.projection[v * kProjection + i] = total(poses + kIntrinsics + i);
    }
  }
}

}  // namespace

void project_backward(const View* views, int view_count, const Settings& settings, const Scene& scene,
                      const Upstream& up, const Gradients& to, Pass& pass, Workspace& w) {
  StageClock clock(w.milliseconds);
  std::vector<ViewData> data;
  std::vector<RowData> rows;
  for (int v = 0; v < view_count; ++v) {
    data.push_back(view_data(pass.view(v), scene.count));
    rows.push_back(row_data(pass.view(v), scene.count));
  }
  const bool sums_wanted = to.poses != nullptr || to.intrinsics != nullptr || to.projection != nullptr;
  const Task task{views, view_count, settings, scene, up, to, data.data(), rows.data(), sums_wanted};
  const int parts = parts_of(scene.count);
  const int width = (scene.sh != nullptr ? scene.coefficients : 1) * scene.channels + kLanes;
  float* columns = w.scratch.ensure<float>(static_cast<std::size_t>(width) * kLanes * parts);
  const int part_doubles = view_count * (scene.slices * kPoseFloats + kIntrinsics + kProjection) + 8;
  double* sums = w.sums.ensure<double>(static_cast<std::size_t>(part_doubles) * parts);
  const int64_t chunks = (scene.count + kLanes - 1) / kLanes;
  for_parts(parts, [&](int p) {
    const Part part{columns + static_cast<std::size_t>(p) * width * kLanes,
                    sums + static_cast<std::size_t>(p) * part_doubles};
    std::memset(part.sums, 0, sizeof(double) * static_cast<std::size_t>(part_doubles));
    const int64_t begin = chunks * p / parts * kLanes;
    const int64_t end = p + 1 == parts ? scene.count : chunks * (p + 1) / parts * kLanes;
    const auto run = scene.covariances != nullptr ? &chunk_backward<true> : &chunk_backward<false>;
    for (int s = 0; s < scene.scenes; ++s) {
      each_slice(scene, begin, end, [&](int64_t from, int64_t until, int slice) {
        for (int64_t i = from; i < until; i += kLanes) {
          run(task, s, slice, i, static_cast<int>(until - i < kLanes ? until - i : kLanes), part);
        }
      });
    }
  });
  write_sums(task, sums, parts, part_doubles);
  clock.stage(kBackProjectStage);
}

LG_END
