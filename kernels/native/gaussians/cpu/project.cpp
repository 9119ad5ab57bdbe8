// Computes records from the scene: projection and colours, sixteen Gaussians at a time.
#include "gaussians/math/project.h"
#include "gaussians/cpu/gaussians.h"
#include "gaussians/cpu/rays/project.h"
#include "gaussians/cpu/sensor.h"
#include "gaussians/math/surfel_project.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// Colours of sixteen Gaussians from harmonics, by channel.
using EvaluateHarmonics = void (*)(const Scene&, const Pose&, int64_t first, const Triple<Pack>& mean, int used,
                                   float* to);

struct Target {
  const View* views;
  int view;
  const Settings& settings;
  const Scene& scene;
  const Outputs& outputs;
  const ViewData& data;
  bool has_outputs;  // Outputs beside the images are wanted.
  EvaluateHarmonics evaluate;
  const RayField* rays;  // Null on the film.
};

LG_INLINE void store_lanes(Pack value, float* to, int64_t stride, int used) {
  alignas(64) float lanes[kLanes];
  value.store(lanes);
  for (int i = 0; i < used; ++i) to[i * stride] = lanes[i];
}

// The first `used` pairs (a lane i, b lane i) of 32 bits each; memory beyond them stays as it is.
template <class Pair>
LG_INLINE void store_pairs(Pack a, Pack b, int used, Pair* to) {
  static_assert(sizeof(Pair) == 2 * sizeof(float));
  if (used == kLanes) {
    interleave_2(a, b, reinterpret_cast<float*>(to));
  } else {
    float both[2 * kLanes];
    interleave_2(a, b, both);
    memcpy(to, both, sizeof(Pair) * used);
  }
}

LG_INLINE void store_whole(Pack value, int32_t* to, int64_t stride, int used) {
  alignas(64) int lanes[kLanes];
  truncate(value).store(lanes);
  for (int i = 0; i < used; ++i) to[i * stride] = lanes[i];
}

// The outputs that callers may request beside the images; 0 where culled.
void store_outputs(const Target& t, int64_t first, int used, const Projected<Pack>& g) {
  const Outputs& out = t.outputs;
  const int64_t row = static_cast<int64_t>(t.view) * t.scene.count + first;
  const auto seen = [&](Pack value) { return zero_unless(g.visible, value); };
  if (out.radii != nullptr) {
    store_whole(seen(g.radius_x), out.radii + 2 * row, 2, used);
    store_whole(seen(g.radius_y), out.radii + 2 * row + 1, 2, used);
  }
  if (out.means2d != nullptr) {
    store_lanes(seen(g.x), out.means2d + 2 * row, 2, used);
    store_lanes(seen(g.y), out.means2d + 2 * row + 1, 2, used);
  }
  if (out.depths != nullptr) store_lanes(seen(g.depth), out.depths + row, 1, used);
  if (out.conics != nullptr) {
    store_lanes(seen(g.a), out.conics + 3 * row, 3, used);
    store_lanes(seen(g.b), out.conics + 3 * row + 1, 3, used);
    store_lanes(seen(g.c), out.conics + 3 * row + 2, 3, used);
  }
  if (out.projected_opacities != nullptr) store_lanes(seen(g.opacity), out.projected_opacities + row, 1, used);
}

// Returns the Gaussians that reach pixels.
LG_INLINE unsigned store_rectangles(const Projected<Pack>& g, PixelRectangle* to, int used) {
  const auto whole = [&](Pack value) { return truncate(zero_unless(g.visible, value)); };
  const IntPack x0 = whole(g.left), x1 = whole(g.right), y0 = whole(g.top), y1 = whole(g.bottom), none = IntPack(0);
  const MaskPack drawn = g.visible & (x1 > x0) & (y1 > y0);
  const IntPack unseen = select(g.visible, IntPack(kNoPixels.y1 << 16), IntPack(kCulled.y1 << 16));
  const IntPack x = select(drawn, x0 | (x1 << 16), none), y = select(drawn, y0 | (y1 << 16), unseen);
  store_pairs(from_bits(x), from_bits(y), used, to);
  return to_bits(drawn);
}

LG_INLINE Rows harmonics_of(const Scene& scene, int64_t first, int used) {
  return Rows(scene.sh, first, static_cast<int64_t>(scene.coefficients) * scene.channels, used);
}

template <int kDegree>
void evaluate_few(const Scene& scene, const Pose& pose, int64_t first, const Triple<Pack>& mean, int used, float* to) {
  constexpr int kCount = (kDegree + 1) * (kDegree + 1);
  Pack basis[kCount], sums[kFewChannels] = {Pack(0.5f), Pack(0.5f), Pack(0.5f)};
  each_harmonic<kDegree>(direction_to(pose, mean).d, [&](int k, Pack value, const Triple<Pack>&) { basis[k] = value; });
  each_column<kCount * kFewChannels>(harmonics_of(scene, first, used), [&](auto f, Pack column) {
    Pack& sum = sums[f % kFewChannels];
    sum = fma(basis[f / kFewChannels], column, sum);
  });
  for (int c = 0; c < kFewChannels; ++c) max(sums[c], Pack(0.0f)).store(to + c * kLanes);
}

template <int kDegree>
void evaluate_many(const Scene& scene, const Pose& pose, int64_t first, const Triple<Pack>& mean, int used, float* to) {
  const Rows rows = harmonics_of(scene, first, used);
  const Triple<Pack> d = direction_to(pose, mean).d;
  Coefficients coefficients;
  for (int c = 0; c < scene.channels; ++c) {
    coefficients.load(rows, (kDegree + 1) * (kDegree + 1), scene.channels, c);
    Pack sum = Pack(0.5f);
    each_harmonic<kDegree>(
        d, [&](int k, Pack value, const Triple<Pack>&) { sum = fma(value, column(coefficients.columns, k), sum); });
    max(sum, Pack(0.0f)).store(to + c * kLanes);
  }
}

EvaluateHarmonics harmonics_evaluation(const Scene& scene, int degree) {
  EvaluateHarmonics run = nullptr;
  with_constant<kMaxDegree>(degree, [&](auto constant) {
    constexpr int kDegree = decltype(constant)::value;
    run = scene.channels == kFewChannels ? &evaluate_few<kDegree> : &evaluate_many<kDegree>;
  });
  return run;
}

// Colours of sixteen Gaussians into columns of `to`, channel by channel.
LG_INLINE void load_colors(const Target& t, const Pose& pose, int64_t first, const Triple<Pack>& mean, int used,
                           float* to) {
  const Scene& scene = t.scene;
  if (scene.sh != nullptr) {
    const Triple<Pack> centre = mean;  // A copy, so that `mean` itself can stay in registers.
    return t.evaluate(scene, pose, first, centre, used, to);
  }
  const int channels = scene.channels;
  const int64_t row =
      scene.colors_per_view ? static_cast<int64_t>(t.view) * scene.count + (first % scene.count) : first;
  const Rows rows(scene.colors, row, channels, used);
  for (int c = 0; c < channels; ++c) {
    for (int i = 0; i < kLanes; ++i) to[c * kLanes + i] = rows.at[i][c];
  }
}

// The records of sixteen Gaussians: `fields`, and from number `first` on the features that have room.
LG_INLINE void store_inline_records(const Target& t, int64_t local, int used, Pack (&fields)[kRecordFloats], int first,
                                    unsigned mask, const float* features) {
  const int total = t.data.more_features == nullptr ? t.data.features.total() : 0;
#pragma GCC unroll 8
  for (int f = 0; f < kRecordFloats - first; ++f) fields[first + f] = f < total ? column(features, f) : Pack(0.0f);
  transpose_16(fields);
  float* to = t.data.records + local * kRecordFloats;
  if (used == kLanes && __builtin_popcount(mask) > kLanes / 2) {
    // Visible lanes cannot be predicted: a branch for each would cost more than the rows of the others.
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) fields[i].store(to + i * kRecordFloats);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((mask >> i & 1u) != 0) fields[i].store(to + i * kRecordFloats);
    }
  }
}

LG_INLINE void store_features(const Target& t, int64_t local, unsigned mask, const float* features) {
  if (t.data.more_features == nullptr) return;
  const int total = t.data.features.total();
  each_lane(mask_from_bits(mask), [&](int i) {
    float* to = t.data.more_features + (local + i) * total;
    for (int f = 0; f < total; ++f) to[f] = features[f * kLanes + i];
  });
}

// (key << 32 | number) of the Gaussians in `mask`; keys sort as the depths do, negative ones included.
LG_INLINE int store_keys(Pack depth, int64_t local, unsigned mask, int used, uint64_t* to) {
  const IntPack b = bits(depth);
  const IntPack key = select(IntPack(0) > b, IntPack(-1) - b, b | IntPack(INT32_MIN));
  const IntPack number = truncate(lanes_0_to_15()) + IntPack(static_cast<int>(local));
  alignas(64) int keys[2 * kLanes] = {}, numbers[2 * kLanes] = {};
  const int count = store_set(mask_from_bits(mask), key, keys);
  store_set(mask_from_bits(mask), number, numbers);
  // Whole packs may be written where there are as many Gaussians left.
  store_pairs(from_bits(IntPack::load(numbers)), from_bits(IntPack::load(keys)), used == kLanes ? kLanes : count, to);
  return count;
}

// Stores what is known of sixteen projected Gaussians, and the keys of those that reach pixels. records(mask, features)
// stores those of these; `normal` is null unless it is a feature.
template <class StoreRecords>
LG_INLINE int store_chunk(const Target& t, const Pose& pose, int64_t local, int used, const Triple<Pack>& mean,
                          const Projected<Pack>& g, const Triple<Pack>* normal, float* features, uint64_t* pairs,
                          const StoreRecords& records) {
  if (t.has_outputs) {
    // A copy, so that `g` itself can stay in registers.
    const Projected<Pack> all = g;
    store_outputs(t, local, used, all);
  }
  const unsigned mask = store_rectangles(g, t.data.rectangles + local, used);
  if (mask == 0) return 0;
  const Features& wanted = t.data.features;
  const int64_t first = static_cast<int64_t>(t.views[t.view].scene) * t.scene.count + local;
  if (wanted.colors > 0) load_colors(t, pose, first, mean, used, features);
  int next = wanted.colors;
  if (wanted.depth) g.depth.store(features + next++ * kLanes);
  if (wanted.inverse_depth) (Pack(1.0f) / g.depth).store(features + next++ * kLanes);
  if (normal != nullptr && wanted.normals) {
    normal->x.store(features + next * kLanes);
    normal->y.store(features + (next + 1) * kLanes);
    normal->z.store(features + (next + 2) * kLanes);
  }
  records(mask, features);
  store_features(t, local, mask, features);
  return store_keys(g.depth, local, mask, used, pairs);
}

LG_INLINE void store_ellipses(const Target& t, int64_t local, int used, const Projected<Pack>& g, unsigned mask,
                              const float* features) {
  // Fields in the order of math/record.h.
  Pack fields[kRecordFloats] = {g.x, g.y, g.ux, g.uy, g.vy, g.log2_opacity, g.half_width, g.half_height};
  store_inline_records(t, local, used, fields, record::kFeatures, mask, features);
}

template <Lens kLens, bool kCovariance>
int project_chunk(const Target& t, int slice, int64_t local, int used, float* features, uint64_t* pairs) {
  const View& view = t.views[t.view];
  const Pose& pose = t.scene.poses[static_cast<int64_t>(t.view) * t.scene.slices + slice];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  prefetch_harmonics(t.scene, first + kLanes);
  const Gaussian<Pack> gaussian = load_gaussians<kCovariance>(t.scene, first, used);
  Projected<Pack> g = project<kLens, kCovariance>(view, pose, t.settings, gaussian);
  g.visible = g.visible & mask_from_bits((1u << used) - 1u);
  return store_chunk(t, pose, local, used, gaussian.mean, g, nullptr, features, pairs,
                     [&](unsigned mask, const float* of) { store_ellipses(t, local, used, g, mask, of); });
}

// Turns a vector from the frame of a slice to the world.
LG_INLINE Triple<Pack> turned_to_world(const SlicePose& slice, const Triple<Pack>& v) {
  const auto row = [&](int k) {
    const double* r = slice.rotation + 3 * k;
    return Triple<Pack>{Pack(static_cast<float>(r[0])), Pack(static_cast<float>(r[1])), Pack(static_cast<float>(r[2]))};
  };
  return {dot(row(0), v), dot(row(1), v), dot(row(2), v)};
}

int project_surfel_chunk(const Target& t, int slice, int64_t local, int used, float* features, uint64_t* pairs) {
  const View& view = t.views[t.view];
  const Pose& pose = t.scene.poses[static_cast<int64_t>(t.view) * t.scene.slices + slice];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  prefetch_harmonics(t.scene, first + kLanes);
  const Gaussian<Pack> gaussian = load_gaussians<false>(t.scene, first, used);
  ProjectedSurfel<Pack> s = project_surfel(view, pose, t.settings, gaussian);
  s.g.visible = s.g.visible & mask_from_bits((1u << used) - 1u);
  const Triple<Pack> normal = turned_to_world(t.scene.slice_poses[slice], s.shape.normal);
  const auto records = [&](unsigned mask, const float* of) {
    const Pair<Pack> tilt = s.tilt();
    Pack fields[kRecordFloats] = {};
    // An ellipse, and in place of its extent the tilt.
    Pack reach[kRecordFloats] = {s.reach_x, s.reach_y, s.g.ux, s.g.uy, s.g.vy, s.g.log2_opacity, tilt.x, tilt.y};
    s.write_record(fields);
    store_inline_records(t, local, used, fields, surfel_record::kFeatures, mask, of);
    transpose_16(reach);
    float* to = t.data.bounds + local * kRecordFloats;
    each_lane(mask_from_bits(mask), [&](int i) { reach[i].store(to + i * kRecordFloats); });
  };
  return store_chunk(t, pose, local, used, gaussian.mean, s.g, &normal, features, pairs, records);
}

int project_sensor_chunk(const Target& t, int slice, int64_t local, int used, float* features, uint64_t* pairs) {
  const View& view = t.views[t.view];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  prefetch_harmonics(t.scene, first + kLanes);
  const Gaussian<Pack> gaussian = load_gaussians<false>(t.scene, first, used);
  const SensorPlace at{view, t.scene.sensors[t.view], t.scene.slice_poses[slice], t.settings};
  Projected<Pack> g = project_sensor(at, gaussian, (1u << used) - 1u);
  if (t.rays != nullptr) {
    const int64_t row = local * kRecordFloats;
    project_rays(at, *t.rays, gaussian, used, g, t.data.records + row, t.data.bounds + row);
  }
  const Pose& pose = t.scene.poses[static_cast<int64_t>(t.view) * t.scene.slices + slice];
  return store_chunk(t, pose, local, used, gaussian.mean, g, nullptr, features, pairs,
                     [&](unsigned mask, const float* of) {
                       if (t.rays == nullptr) store_ellipses(t, local, used, g, mask, of);
                     });
}

using ProjectChunk = int (*)(const Target&, int, int64_t, int, float*, uint64_t*);

ProjectChunk chunk_projection(const View& view, const Settings& settings, const Scene& scene) {
  if (settings.surfels) return &project_surfel_chunk;
  if (scene.sensors != nullptr) return &project_sensor_chunk;
  ProjectChunk run = nullptr;
  with_lens(view, [&](auto lens) {
    constexpr Lens kLens = decltype(lens)::value;
    run = scene.covariances != nullptr ? &project_chunk<kLens, true> : &project_chunk<kLens, false>;
  });
  return run;
}

}  // namespace

uint64_t* project_view(const View* views, int view, const Settings& settings, const Scene& scene,
                       const Outputs& outputs, const ViewData& data, const RayField* rays, Workspace& w,
                       Segments& segments) {
  const int64_t n = scene.count;
  uint64_t* pairs = w.pairs.ensure<uint64_t>(static_cast<std::size_t>(n));
  const bool has_outputs = outputs.radii != nullptr || outputs.means2d != nullptr || outputs.depths != nullptr ||
                           outputs.conics != nullptr || outputs.projected_opacities != nullptr;
  const Target target{
      views, view, settings, scene, outputs, data, has_outputs, harmonics_evaluation(scene, settings.sh_degree), rays};
  const ProjectChunk run = chunk_projection(views[view], settings, scene);
  segments.parts = parts_of(n);
  const std::size_t feature_floats = static_cast<std::size_t>(data.features.total() + 1) * kLanes;
  float* features = w.scratch.ensure<float>(feature_floats * segments.parts);
  for_parts(segments.parts, [&](int p) {
    // Whole chunks but for the last part's, so that they start at the same Gaussians with any number of threads.
    const int64_t chunks = (n + kLanes - 1) / kLanes;
    const int64_t begin = chunks * p / segments.parts * kLanes;
    const int64_t end = p + 1 == segments.parts ? n : chunks * (p + 1) / segments.parts * kLanes;
    int64_t visible = 0;
    each_slice(scene, begin, end, [&](int64_t from, int64_t to, int slice) {
      for (int64_t i = from; i < to; i += kLanes) {
        const int used = static_cast<int>(to - i < kLanes ? to - i : kLanes);
        visible += run(target, slice, i, used, features + p * feature_floats, pairs + begin + visible);
      }
    });
    segments.begin[p] = begin;
    segments.length[p] = visible;
  });
  return pairs;
}

LG_END
