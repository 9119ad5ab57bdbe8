// Computes the gradients of the scene and of the views from the sums over pixels, sixteen Gaussians at a time, and sums
// the views of a scene before it writes the gradients.
#include "gaussians/cpu/bands.h"
#include "gaussians/cpu/gradient_sums.h"
#include "gaussians/cpu/rays/project.h"
#include "gaussians/cpu/sensor.h"
#include "gaussians/math/surfel_project.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct Task {
  const View* views;
  int view_count;
  const Settings& settings;
  const Scene& scene;
  const Upstream& up;
  const Gradients& to;
  const ViewData* data;  // [V]
  const RowData* rows;   // [V]
  bool poses;            // Whether sums over the Gaussians are requested.
  bool touched_only;     // Whether rows without a gradient may stay unchanged.
};

// Rows [kRecordFloats] of the Gaussians in `mask`, by column; zero elsewhere.
LG_INLINE void load_columns(const float* rows, const uint32_t* places, unsigned mask, Pack columns[kRecordFloats]) {
  for (int i = 0; i < kLanes; ++i) {
    columns[i] = (mask >> i & 1u) != 0 ? Pack::load(rows + int64_t{places[i]} * kRecordFloats) : Pack(0.0f);
  }
  transpose_16(columns);
}

// Sixteen Gaussians in one view.
struct Sight {
  const Task& task;
  int view;
  int slice;
  int64_t local;  // Index of the first Gaussian within its scene.
  int64_t first;  // Index of the first Gaussian among all scenes.
  int used;
  unsigned mask;           // Lanes with gradients.
  unsigned touched;        // Lanes with sums over pixels.
  const uint32_t* places;  // Places of the lanes' Gaussians.
  const Pack* fields;
  LG_INLINE const ViewData& data() const { return task.data[view]; }
  LG_INLINE const Pose& pose() const {
    return task.scene.poses[static_cast<int64_t>(view) * task.scene.slices + slice];
  }
  // The gradient of feature f.
  LG_INLINE Pack feature(int f) const {
    const RowData& rows = task.rows[view];
    const Features& features = data().features;
    if (rows.feature_rows == nullptr) return fields[first_row_feature(features) + f];
    alignas(64) float lanes[kLanes] = {};
    each_lane(mask_from_bits(touched),
              [&](int i) { lanes[i] = rows.feature_rows[int64_t{places[i]} * features.total() + f]; });
    return Pack::load(lanes);
  }
};

// Columns of features of the Gaussians with sums, as they were drawn; 0 elsewhere.
LG_INLINE void load_features(const Sight& s, int count, float* columns) {
  if (s.data().more_features == nullptr) {
    Pack fields[kRecordFloats];
    load_columns(s.data().records, s.places, s.touched, fields);
    const int first = first_feature(s.data().features);
    for (int c = 0; c < count; ++c) fields[first + c].store(columns + c * kLanes);
    return;
  }
  memset(columns, 0, sizeof(float) * kLanes * static_cast<std::size_t>(count));
  each_lane(mask_from_bits(s.touched), [&](int i) {
    const float* features = s.data().features_of(s.places[i]);
    for (int c = 0; c < count; ++c) columns[c * kLanes + i] = features[c];
  });
}

// Returns the gradient of the direction, given along[k], the sum over the channels of coefficient k times the colour's
// gradient; calls value(k, harmonic) for each harmonic.
template <int kDegree, class Along, class Value>
LG_INLINE Triple<Pack> harmonics_backward(const Triple<Pack>& d, const Along& along, const Value& value) {
  Triple<Pack> to = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  each_harmonic<kDegree>(d, [&](int k, Pack harmonic, const Triple<Pack>& slope) {
    const Pack here = along(k);
    to.x = fma(slope.x, here, to.x);
    to.y = fma(slope.y, here, to.y);
    to.z = fma(slope.z, here, to.z);
    value(k, harmonic);
  });
  return to;
}

template <int kDegree>
LG_INLINE Triple<Pack> few_colors_backward(const Triple<Pack>& d, const Rows& rows, const Pack* v, float* gradients) {
  constexpr int kCount = (kDegree + 1) * (kDegree + 1);
  Pack along[kCount];
  each_column<kCount * kFewChannels>(rows, [&](auto f, Pack column) {
    Pack& sum = along[f / kFewChannels];
    sum = f % kFewChannels == 0 ? column * v[0] : fma(column, v[f % kFewChannels], sum);
  });
  const auto add = [&](int k, Pack harmonic) {
    if (gradients == nullptr) return;
    for (int c = 0; c < kFewChannels; ++c) {
      float* to = gradients + (k * kFewChannels + c) * kLanes;
      fma(harmonic, v[c], Pack::load(to)).store(to);
    }
  };
  return harmonics_backward<kDegree>(d, [&](int k) { return along[k]; }, add);
}

// Backpropagates colours to harmonics: adds to the harmonics' gradients, and returns the direction's gradient.
Triple<Pack> colors_backward(const Sight& s, const Triple<Pack>& direction, MaskPack mask, float* gradients) {
  const Scene& scene = s.task.scene;
  const int channels = scene.channels, degree = s.task.settings.sh_degree, active = (degree + 1) * (degree + 1);
  const Rows rows(scene.sh, s.first, static_cast<int64_t>(scene.coefficients) * channels, s.used);
  // Gaussians that are not drawn may have no direction.
  const Triple<Pack> d = {zero_unless(mask, direction.x), zero_unless(mask, direction.y),
                          zero_unless(mask, direction.z)};
  // A colour that was clamped at 0 has no gradient.
  const auto gradient = [&](int c, Pack shown) { return zero_unless(mask & (shown > Pack(0.0f)), s.feature(c)); };
  Triple<Pack> to = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  if (channels == kFewChannels) {
    alignas(64) float shown[kFewChannels * kLanes];
    load_features(s, kFewChannels, shown);
    Pack v[kFewChannels];
    for (int c = 0; c < kFewChannels; ++c) v[c] = gradient(c, column(shown, c));
    with_constant<kMaxDegree>(
        degree, [&](auto constant) { to = few_colors_backward<decltype(constant)::value>(d, rows, v, gradients); });
    return to;
  }
  Coefficients coefficients;
  for (int c = 0; c < channels; ++c) {
    coefficients.load(rows, active, channels, c);
    alignas(64) float shown[kLanes] = {};
    each_lane(mask_from_bits(s.touched), [&](int i) { shown[i] = s.data().features_of(s.places[i])[c]; });
    const Pack v = gradient(c, Pack::load(shown));
    with_constant<kMaxDegree>(degree, [&](auto constant) {
      const auto along = [&](int k) { return column(coefficients.columns, k) * v; };
      to = to + harmonics_backward<decltype(constant)::value>(d, along, [&](int k, Pack harmonic) {
             if (gradients != nullptr) add_column(gradients, k * channels + c, mask, harmonic * v);
           });
    });
  }
  return to;
}

// `absolute`: sums of absolute gradients.
LG_INLINE void store_means2d(const Sight& s, int used, MaskPack mask, const Pair<Pack>& v, const Pair<Pack>& absolute) {
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
    store(absolute.x, s.task.to.means2d_abs + 2 * row);
    store(absolute.y, s.task.to.means2d_abs + 2 * row + 1);
  }
}

// The given gradients of the projected means, besides those from pixels.
LG_INLINE Pair<Pack> given_means2d(const Sight& s, int used) {
  const Task& t = s.task;
  if (t.up.d_means2d == nullptr) return {Pack(0.0f), Pack(0.0f)};
  const RowPacks<2> given(t.up.d_means2d, static_cast<int64_t>(s.view) * t.scene.count + s.local, used);
  return {given.at[0], given.at[1]};
}

// The sums over the pixels, without the gradients of depths.
LG_INLINE PixelSums<Pack> pixel_sums(const Sight& s, int used) {
  return {s.fields[0], s.fields[1], s.fields[2], s.fields[3],
          s.fields[4], s.fields[5], Pack(0.0f),  given_means2d(s, used)};
}

// Adds the gradients from a view to the columns and to the sums of the view.
template <bool kCovariance>
LG_INLINE void add_gradients(const Sight& s, int used, MaskPack mask, const Triple<Pack>& mean,
                             const GaussianGradient<Pack>& g, const Triple<Pack>& v_h, const ViewSums& sums,
                             Columns& to) {
  const Task& t = s.task;
  const Features& features = s.data().features;
  Triple<Pack> v_direction = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  if (t.scene.sh != nullptr && features.colors > 0) {
    const Direction<Pack> direction = direction_to(s.pose(), mean);
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
  Pair<Pack> absolute = {s.fields[gradient_row::kAbsX], s.fields[gradient_row::kAbsY]};
  if (features.surfels) absolute = absolute_mean2d(s.fields);
  store_means2d(s, used, mask, g.mean2d, absolute);
  if (t.poses) add_view_sums(sums, s.slice, mask, g, v_direction, v_h, mean, t.views[s.view].projected != 0);
}

template <Lens kLens, bool kCovariance>
void sight_backward(const Sight& s, const Gaussian<Pack>& gaussian, int used, const ViewSums& sums, Columns& to) {
  const Task& t = s.task;
  const MaskPack mask = mask_from_bits(s.mask);
  PixelSums<Pack> pixel = pixel_sums(s, used);
  const Features& features = s.data().features;
  int next = features.colors;
  if (features.depth) pixel.depth = s.feature(next++);
  if (features.inverse_depth) {
    const Triple<Pack> row = {Pack(s.pose().rotation[6]), Pack(s.pose().rotation[7]), Pack(s.pose().rotation[8])};
    const Pack inverse = Pack(1.0f) / (dot(row, gaussian.mean) + Pack(s.pose().translation[2]));
    pixel.depth = fma(-s.feature(next), inverse * inverse, pixel.depth);
  }
  Triple<Pack> v_h;
  const GaussianGradient<Pack> g =
      project_backward<kLens, kCovariance>(t.views[s.view], s.pose(), t.settings, gaussian, pixel, v_h);
  add_gradients<kCovariance>(s, used, mask, gaussian.mean, g, v_h, sums, to);
}

void surfel_sight_backward(const Sight& s, const Gaussian<Pack>& gaussian, int used, const ViewSums& sums,
                           Columns& to) {
  const Task& t = s.task;
  const Features& features = s.data().features;
  const Pack zero = Pack(0.0f);
  int next = features.colors;
  SurfelUpstream<Pack> pixel = {
      s.fields, features.depth ? s.feature(next++) : zero, {zero, zero, zero}, given_means2d(s, used)};
  Triple<Pack> v_normal = pixel.normal;
  if (features.normals) v_normal = {s.feature(next), s.feature(next + 1), s.feature(next + 2)};
  const double* r = t.scene.slice_poses[s.slice].rotation;
  const auto column = [&](int k) {
    return fma(Pack(static_cast<float>(r[k])), v_normal.x,
               fma(Pack(static_cast<float>(r[3 + k])), v_normal.y, Pack(static_cast<float>(r[6 + k])) * v_normal.z));
  };
  pixel.normal = {column(0), column(1), column(2)};
  Triple<Pack> normal;
  const GaussianGradient<Pack> g = surfel_backward(t.views[s.view], s.pose(), t.settings, gaussian, pixel, normal);
  const MaskPack mask = mask_from_bits(s.mask);
  if (t.poses && features.normals) add_normal_sums(sums, s.slice, mask, v_normal, normal);
  add_gradients<false>(s, used, mask, gaussian.mean, g, {zero, zero, zero}, sums, to);
}

void sensor_sight_backward(const Sight& s, const Gaussian<Pack>& gaussian, int used, const ViewSums& sums,
                           Columns& to) {
  const Task& t = s.task;
  const Features& features = s.data().features;
  const Pack zero = Pack(0.0f);
  int next = features.colors;
  const Pack v_depth = features.depth ? s.feature(next++) : zero;
  const Pack v_inverse_depth = features.inverse_depth ? s.feature(next) : zero;
  const SensorPlace at{t.views[s.view], t.scene.sensors[s.view], t.scene.slice_poses[s.slice], t.settings};
  const SensorSums view_sums = {t.poses ? sums.sensor : nullptr, sums.poses + s.slice * kPoseSums + kPoseFloats};
  GaussianGradient<Pack> g;
  if (features.rays) {
    g = project_rays_backward(at, gaussian, s.fields, v_depth, v_inverse_depth, s.mask, view_sums);
  } else {
    PixelSums<Pack> pixel = pixel_sums(s, used);
    pixel.depth = v_depth;
    g = project_sensor_backward(at, gaussian, pixel, v_inverse_depth, s.mask, view_sums);
  }
  add_gradients<false>(s, used, mask_from_bits(s.mask), gaussian.mean, g, {zero, zero, zero}, sums, to);
}

// The drawn Gaussians with sums over pixels, as bits.
LG_INLINE unsigned touched_of(const RowData& rows, const PackPlaces& at) {
  unsigned mask = 0;
  each_lane(mask_from_bits(at.drawn), [&](int i) { mask |= static_cast<unsigned>(rows.touched[at.of[i]] != 0) << i; });
  return mask;
}

struct Part {
  float* color_columns;
  double* sums;  // Sums of all views.
};

// Writes the gradients of colours that are given per view.
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

template <bool kCovariance>
void chunk_backward(const Task& t, int scene_number, int slice, int64_t local, int used, const Part& part) {
  const Scene& scene = t.scene;
  const int64_t first = static_cast<int64_t>(scene_number) * scene.count + local;
  const int width = scene.sh != nullptr ? scene.coefficients * scene.channels : scene.channels;
  const bool colors = scene.sh != nullptr ? t.to.sh != nullptr : t.to.colors != nullptr && !scene.colors_per_view;
  Columns columns;
  columns.colors = colors ? part.color_columns : nullptr;
  columns.width = width;
  unsigned any_view = 0;
  Gaussian<Pack> gaussian;
  for (int v = 0; v < t.view_count; ++v) {
    if (t.views[v].scene != scene_number) continue;
    const PackPlaces at(t.data[v].sixteens, local, used);
    const unsigned touched = touched_of(t.rows[v], at);
    const unsigned mask = t.up.d_means2d != nullptr ? at.seen : touched;
    Pack fields[kRecordFloats];
    const Sight sight{t, v, slice, local, first, used, mask, touched, at.of, fields};
    if (mask == 0) {
      for (int f = 0; f < kRecordFloats; ++f) fields[f] = Pack(0.0f);
      store_means2d(sight, used, mask_from_bits(0), {Pack(0.0f), Pack(0.0f)}, {Pack(0.0f), Pack(0.0f)});
      write_view_colors(sight, used);
      continue;
    }
    if (any_view == 0) {
      prefetch_harmonics(scene, first + kLanes);
      gaussian = load_gaussians<kCovariance>(scene, first, used);
      columns.clear();
    }
    any_view |= mask;
    load_columns(t.rows[v].rows, at.of, touched, fields);
    const ViewSums sums(part.sums, scene, v);
    if (t.settings.surfels) {
      surfel_sight_backward(sight, gaussian, used, sums, columns);
    } else if (scene.sensors != nullptr) {
      sensor_sight_backward(sight, gaussian, used, sums, columns);
    } else {
      with_lens(t.views[v], [&](auto lens) {
        sight_backward<decltype(lens)::value, kCovariance>(sight, gaussian, used, sums, columns);
      });
    }
    write_view_colors(sight, used);
  }
  if (t.to.touched != nullptr) {
    for (int i = 0; i < used; ++i) t.to.touched[first + i] = static_cast<int32_t>(any_view >> i & 1u);
  }
  if (any_view == 0 && t.touched_only) return;
  Gradients to = t.to;
  if (!colors) to.sh = to.colors = nullptr;
  write_columns(to, any_view != 0 ? &columns : nullptr, scene.sh != nullptr, width, first, used);
}

// Adds the gradients that pass through the rays of pixels.
void add_ray_totals(int view_count, const Scene& scene, const Gradients& to, Pass& pass) {
  for (int v = 0; to.poses != nullptr && scene.moving_slices > 0 && v < view_count; ++v) {
    for (int g = 0; g < scene.slices; ++g) {
      const int moving = scene.slice_poses[g].moving;
      if (moving < 0) continue;
      const double* from = pass.view(v).slice_gradients.ensure<double>(1) + moving * kSliceMotionSums;
      double* pose = to.poses + (static_cast<int64_t>(v) * scene.slices + g) * kPoseSums + kPoseFloats;
      for (int i = 0; i < kSliceMotionSums; ++i) pose[i] += from[i];
    }
  }
  if (to.sensors == nullptr) return;
  constexpr int kInverse = kRaySums - kSensorSums;
  for (int v = 0; v < view_count; ++v) {
    const double* rays = pass.view(v).ray_gradients.ensure<double>(kRaySums);
    for (int i = 0; i < kSensorSums; ++i) to.sensors[v * kSensorSums + i] += rays[i];
    for (int i = 0; i < kInverse; ++i) to.inverse_windshield[v * kInverse + i] = rays[kSensorSums + i];
  }
}

}  // namespace

void project_backward(const View* views, int view_count, const Settings& settings, const Scene& scene,
                      const Upstream& up, const Gradients& to, bool touched_only, Pass& pass, Workspace& w) {
  StageClock clock(w.milliseconds);
  std::vector<ViewData> data;
  std::vector<RowData> rows;
  for (int v = 0; v < view_count; ++v) {
    data.push_back(view_data(pass.view(v), scene.count));
    rows.push_back(row_data(pass.view(v)));
  }
  const bool sums_wanted = to.poses != nullptr || to.normals != nullptr || to.intrinsics != nullptr ||
                           to.projection != nullptr || to.sensors != nullptr;
  const Task task{views, view_count, settings, scene, up, to, data.data(), rows.data(), sums_wanted, touched_only};
  const int parts = parts_of(scene.count);
  const int width = (scene.sh != nullptr ? scene.coefficients : 1) * scene.channels + kLanes;
  float* columns = w.scratch.ensure<float>(static_cast<std::size_t>(width) * kLanes * parts);
  const int part_doubles = view_count * ViewSums::doubles(scene) + 8;
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
  write_view_sums(scene, view_count, to, sums, parts, part_doubles);
  if (settings.rays) add_ray_totals(view_count, scene, to, pass);
  pass.release_sums();
  clock.stage(kBackProjectStage);
}

LG_END
