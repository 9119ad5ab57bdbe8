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
  uint64_t* keys;    // By place.
  bool has_outputs;  // Whether outputs besides the images are requested.
  EvaluateHarmonics evaluate;
  const RayField* rays;  // Null on the film.
};

// The places of a part's Gaussians: the next place and the end. Gaussians beyond the end are only counted.
struct PartPlaces {
  int64_t next, end;
};

// The places that a pack's drawn Gaussians take.
struct Taken {
  MaskPack drawn;
  int64_t first;
  int count;
  bool whole;  // Whether a whole pack may be written: lanes beyond `count` are overwritten later or never read.

  LG_INLINE int used() const { return whole ? kLanes : count; }
};

LG_INLINE void store_lanes(Pack value, float* to, int64_t stride, int used) {
  alignas(64) float lanes[kLanes];
  value.store(lanes);
  for (int i = 0; i < used; ++i) to[i * stride] = lanes[i];
}

// Stores the first `used` pairs (a lane i, b lane i) of 32 bits each; memory beyond them does not change.
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

// Stores the outputs that callers may request besides the images; 0 where culled.
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

// Pixels that Gaussians reach, as the halves of PixelRectangle.
struct Reach {
  IntPack x, y;
  MaskPack drawn;  // Gaussians that reach any pixel.

  LG_INLINE explicit Reach(const Projected<Pack>& g) {
    const auto whole = [&](Pack value) { return truncate(zero_unless(g.visible, value)); };
    const IntPack x0 = whole(g.left), x1 = whole(g.right), y0 = whole(g.top), y1 = whole(g.bottom);
    drawn = g.visible & (x1 > x0) & (y1 > y0);
    x = x0 | (x1 << 16);
    y = y0 | (y1 << 16);
  }
};

// The drawn lanes without gaps.
LG_INLINE Pack packed(const Taken& to, IntPack value) {
  alignas(64) int lanes[2 * kLanes] = {};
  store_set(to.drawn, value, lanes);
  return from_bits(IntPack::load(lanes));
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

// Loads the colours of sixteen Gaussians into columns of `to`, channel by channel.
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

// Stores the drawn rows of sixteen without gaps.
LG_INLINE void store_records(const Taken& to, const Pack (&rows)[kRecordFloats], float* records) {
  const unsigned mask = to_bits(to.drawn);
  float* next = records + to.first * kRecordFloats;
  if (to.whole && to.count > kLanes / 2) {
    // Drawn lanes are unpredictable: a branch for each would cost more than also writing the other rows, which the
    // following rows overwrite.
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      rows[i].store(next);
      next += (mask >> i & 1u) * kRecordFloats;
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((mask >> i & 1u) == 0) continue;
      rows[i].store(next);
      next += kRecordFloats;
    }
  }
}

// Stores the records of sixteen Gaussians: `fields`, and from field `first` on the features that fit.
LG_INLINE void store_inline_records(const Target& t, const Taken& to, Pack (&fields)[kRecordFloats], int first,
                                    const float* features) {
  const int total = t.data.more_features == nullptr ? t.data.features.total() : 0;
#pragma GCC unroll 8
  for (int f = 0; f < kRecordFloats - first; ++f) fields[first + f] = f < total ? column(features, f) : Pack(0.0f);
  transpose_16(fields);
  store_records(to, fields, t.data.records);
}

LG_INLINE void store_features(const Target& t, const Taken& taken, const float* features) {
  if (t.data.more_features == nullptr) return;
  const int total = t.data.features.total();
  float* to = t.data.more_features + taken.first * total;
  each_lane(taken.drawn, [&](int i) {
    for (int f = 0; f < total; ++f) *to++ = features[f * kLanes + i];
  });
}

// Stores (key << 32 | place) of the drawn Gaussians; keys sort like depths, including negative depths.
LG_INLINE void store_keys(Pack depth, const Taken& to, uint64_t* keys) {
  const IntPack b = bits(depth);
  const IntPack key = select(IntPack(0) > b, IntPack(-1) - b, b | IntPack(INT32_MIN));
  const IntPack place = truncate(lanes_0_to_15()) + IntPack(static_cast<int>(to.first));
  store_pairs(from_bits(place), packed(to, key), to.used(), keys + to.first);
}

// Stores sixteen projected Gaussians: the requested outputs of all, and the data for blending of those that reach
// pixels, whose records records(taken, features) stores. `normal` is null unless it is a feature.
template <class StoreRecords>
LG_INLINE void store_chunk(const Target& t, const Pose& pose, int64_t local, int used, const Triple<Pack>& mean,
                           const Projected<Pack>& g, const Triple<Pack>* normal, float* features, PartPlaces& places,
                           const StoreRecords& records) {
  if (t.has_outputs) {
    // A copy, so that `g` itself can stay in registers.
    const Projected<Pack> all = g;
    store_outputs(t, local, used, all);
  }
  const Reach reach(g);
  const unsigned mask = to_bits(reach.drawn);
  note_places(t.data.sixteens, local, used, mask, to_bits(g.visible), places.next);
  if (mask == 0) return;
  const Taken taken = {reach.drawn, places.next, __builtin_popcount(mask), places.next + kLanes <= places.end};
  places.next += taken.count;
  if (places.next > places.end) return;
  store_pairs(packed(taken, reach.x), packed(taken, reach.y), taken.used(), t.data.rectangles + taken.first);
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
  records(taken, features);
  store_features(t, taken, features);
  store_keys(g.depth, taken, t.keys);
}

LG_INLINE void store_ellipses(const Target& t, const Projected<Pack>& g, const Taken& to, const float* features) {
  // Fields in the order of math/record.h.
  Pack fields[kRecordFloats] = {g.x, g.y, g.ux, g.uy, g.vy, g.log2_opacity, g.half_width, g.half_height};
  store_inline_records(t, to, fields, record::kFeatures, features);
}

template <Lens kLens, bool kCovariance>
void project_chunk(const Target& t, int slice, int64_t local, int used, float* features, PartPlaces& places) {
  const View& view = t.views[t.view];
  const Pose& pose = t.scene.poses[static_cast<int64_t>(t.view) * t.scene.slices + slice];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  if (places.next < places.end) prefetch_harmonics(t.scene, first + kLanes);
  const Gaussian<Pack> gaussian = load_gaussians<kCovariance>(t.scene, first, used);
  Projected<Pack> g = project<kLens, kCovariance>(view, pose, t.settings, gaussian);
  g.visible = g.visible & mask_from_bits((1u << used) - 1u);
  store_chunk(t, pose, local, used, gaussian.mean, g, nullptr, features, places,
              [&](const Taken& to, const float* of) { store_ellipses(t, g, to, of); });
}

// Turns a vector from the frame of a slice to the world.
LG_INLINE Triple<Pack> turned_to_world(const SlicePose& slice, const Triple<Pack>& v) {
  const auto row = [&](int k) {
    const double* r = slice.rotation + 3 * k;
    return Triple<Pack>{Pack(static_cast<float>(r[0])), Pack(static_cast<float>(r[1])), Pack(static_cast<float>(r[2]))};
  };
  return {dot(row(0), v), dot(row(1), v), dot(row(2), v)};
}

void project_surfel_chunk(const Target& t, int slice, int64_t local, int used, float* features, PartPlaces& places) {
  const View& view = t.views[t.view];
  const Pose& pose = t.scene.poses[static_cast<int64_t>(t.view) * t.scene.slices + slice];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  if (places.next < places.end) prefetch_harmonics(t.scene, first + kLanes);
  const Gaussian<Pack> gaussian = load_gaussians<false>(t.scene, first, used);
  ProjectedSurfel<Pack> s = project_surfel(view, pose, t.settings, gaussian);
  s.g.visible = s.g.visible & mask_from_bits((1u << used) - 1u);
  const Triple<Pack> normal = turned_to_world(t.scene.slice_poses[slice], s.shape.normal);
  const auto records = [&](const Taken& to, const float* of) {
    const Pair<Pack> tilt = s.tilt();
    Pack fields[kRecordFloats] = {};
    // An ellipse, with the tilt in place of its extent.
    Pack reach[kRecordFloats] = {s.reach_x, s.reach_y, s.g.ux, s.g.uy, s.g.vy, s.g.log2_opacity, tilt.x, tilt.y};
    s.write_record(fields);
    store_inline_records(t, to, fields, surfel_record::kFeatures, of);
    transpose_16(reach);
    store_records(to, reach, t.data.bounds);
  };
  store_chunk(t, pose, local, used, gaussian.mean, s.g, &normal, features, places, records);
}

void project_sensor_chunk(const Target& t, int slice, int64_t local, int used, float* features, PartPlaces& places) {
  const View& view = t.views[t.view];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  if (places.next < places.end) prefetch_harmonics(t.scene, first + kLanes);
  const Gaussian<Pack> gaussian = load_gaussians<false>(t.scene, first, used);
  const SensorPlace at{view, t.scene.sensors[t.view], t.scene.slice_poses[slice], t.settings};
  Projected<Pack> g = project_sensor(at, gaussian, (1u << used) - 1u);
  Pack rows[kRecordFloats], bounds[kRecordFloats];
  if (t.rays != nullptr) project_rays(at, *t.rays, gaussian, used, g, rows, bounds);
  const Pose& pose = t.scene.poses[static_cast<int64_t>(t.view) * t.scene.slices + slice];
  store_chunk(t, pose, local, used, gaussian.mean, g, nullptr, features, places, [&](const Taken& to, const float* of) {
    if (t.rays == nullptr) return store_ellipses(t, g, to, of);
    store_records(to, rows, t.data.records);
    store_records(to, bounds, t.data.bounds);
  });
}

using ProjectChunk = void (*)(const Target&, int, int64_t, int, float*, PartPlaces&);

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

// Projects the Gaussians of a scene in parts: all packs of them, or every few packs.
class Projection {
 public:
  Projection(const Target& target, int parts, float* features)
      : target_(target),
        run_(chunk_projection(target.views[target.view], target.settings, target.scene)),
        parts_(parts),
        features_(features) {}

  // The first Gaussian of a part. Parts consist of whole packs, except at the end of the last part, so that packs begin
  // at the same Gaussians for any number of threads.
  int64_t begin(int part) const {
    const int64_t n = target_.scene.count, packs = (n + kLanes - 1) / kLanes;
    return part == parts_ ? n : packs * part / parts_ * kLanes;
  }
  int64_t count(int part) const { return begin(part + 1) - begin(part); }

  // Projects a pack of every `step` Gaussians. Sets `drawn` to the numbers of Gaussians that reach pixels in each part;
  // the first room[p] of part p get places from first[p] on.
  void run(int64_t step, const int64_t* first, const int64_t* room, int64_t* drawn) const {
    for_parts(parts_, [&](int p) {
      PartPlaces places{first[p], first[p] + room[p]};
      float* features = features_ + p * feature_floats(target_.data.features);
      int64_t next = begin(p) + (step - kLanes) / 2 / kLanes * kLanes;
      each_slice(target_.scene, begin(p), begin(p + 1), [&](int64_t from, int64_t to, int slice) {
        for (int64_t i = from > next ? from : next; i < to; i += step) {
          run_(target_, slice, i, static_cast<int>(to - i < kLanes ? to - i : kLanes), features, places);
          next = i + step - kLanes;
        }
      });
      drawn[p] = places.next - first[p];
    });
  }

  // Sets the room that each part needs; for a large scene this is an estimate from a sample of its packs, with a
  // margin.
  void expect(int64_t* room) const {
    constexpr int64_t kFew = 1 << 14, kStep = 64, kMore = 1024;
    int64_t none[kMaxParts] = {}, drawn[kMaxParts];
    const bool all = target_.scene.count <= kFew;
    if (!all) run(kStep * kLanes, none, none, drawn);
    for (int p = 0; p < parts_; ++p) {
      const int64_t expected = all ? count(p) : drawn[p] * kStep * 9 / 8 + kMore;
      room[p] = expected < count(p) ? expected : count(p);
    }
  }

  static std::size_t feature_floats(const Features& features) {
    return static_cast<std::size_t>(features.total() + 1) * kLanes;
  }

 private:
  const Target& target_;
  ProjectChunk run_;
  int parts_;
  float* features_;
};

}  // namespace

uint64_t* project_view(const View* views, int view, const Settings& settings, const Scene& scene,
                       const Outputs& outputs, ViewState& state, const RayField* rays, Workspace& w,
                       Segments& segments) {
  const bool has_outputs = outputs.radii != nullptr || outputs.means2d != nullptr || outputs.depths != nullptr ||
                           outputs.conics != nullptr || outputs.projected_opacities != nullptr;
  state.places = 0;
  ViewData data = view_data(state, scene.count);
  Target target{views,   view,        settings,
                scene,   outputs,     data,
                nullptr, has_outputs, harmonics_evaluation(scene, settings.sh_degree),
                rays};
  segments.parts = parts_of(scene.count);
  float* features = w.scratch.ensure<float>(Projection::feature_floats(data.features) * segments.parts);
  const Projection projection(target, segments.parts, features);
  int64_t room[kMaxParts];
  projection.expect(room);
  for (bool fits = false; !fits;) {
    int64_t places = 0;
    for (int p = 0; p < segments.parts; ++p) {
      segments.begin[p] = places;
      places += room[p];
    }
    state.places = static_cast<std::size_t>(places);
    data = view_data(state, scene.count);
    target.keys = w.pairs.ensure<uint64_t>(state.places);
    projection.run(kLanes, segments.begin, room, segments.length);
    // If there are more Gaussians than expected, the next run has room for all that were counted.
    fits = true;
    for (int p = 0; p < segments.parts; ++p) fits &= segments.length[p] <= room[p];
    for (int p = 0; p < segments.parts && !fits; ++p) room[p] = segments.length[p];
  }
  for (int p = 0; p < segments.parts; ++p) {
    const int64_t drawn = segments.length[p];
    memset(data.rectangles + segments.begin[p] + drawn, 0, sizeof(PixelRectangle) * (room[p] - drawn));
  }
  return target.keys;
}

LG_END
