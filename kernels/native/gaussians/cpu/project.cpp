// Computes records from the scene: projection and colours, sixteen Gaussians at a time.
#include "gaussians/math/project.h"
#include "gaussians/cpu/gaussians.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct Target {
  const View* views;
  int view;
  const Settings& settings;
  const Scene& scene;
  const Outputs& outputs;
  const ViewData& data;
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

template <int kDegree>
LG_INLINE Pack evaluate(const Triple<Pack>& d, const float* columns) {
  Pack sum = Pack(0.5f);
  each_harmonic<kDegree>(d, [&](int k, Pack value, const Triple<Pack>&) { sum = fma(value, column(columns, k), sum); });
  return max(sum, Pack(0.0f));
}

template <int kDegree>
LG_INLINE void evaluate_few(const Triple<Pack>& d, const Rows& rows, float* to) {
  constexpr int kCount = (kDegree + 1) * (kDegree + 1);
  Pack basis[kCount], sums[kFewChannels] = {Pack(0.5f), Pack(0.5f), Pack(0.5f)};
  each_harmonic<kDegree>(d, [&](int k, Pack value, const Triple<Pack>&) { basis[k] = value; });
  each_column<kCount * kFewChannels>(rows, [&](auto f, Pack column) {
    Pack& sum = sums[f % kFewChannels];
    sum = fma(basis[f / kFewChannels], column, sum);
  });
  for (int c = 0; c < kFewChannels; ++c) max(sums[c], Pack(0.0f)).store(to + c * kLanes);
}

void evaluate_harmonics(const Target& t, const Pose& pose, int64_t first, const Triple<Pack>& mean, unsigned mask,
                        float* to) {
  const Scene& scene = t.scene;
  const int channels = scene.channels, degree = t.settings.sh_degree;
  const Rows rows(scene.sh, first, static_cast<int64_t>(scene.coefficients) * channels, mask);
  const Direction<Pack> direction = direction_to(pose, mean);
  if (channels == kFewChannels) {
    with_constant<kMaxDegree>(degree,
                              [&](auto constant) { evaluate_few<decltype(constant)::value>(direction.d, rows, to); });
    return;
  }
  Coefficients coefficients;
  for (int c = 0; c < channels; ++c) {
    coefficients.load(rows, (degree + 1) * (degree + 1), channels, c);
    with_constant<kMaxDegree>(degree, [&](auto constant) {
      evaluate<decltype(constant)::value>(direction.d, coefficients.columns).store(to + c * kLanes);
    });
  }
}

// Colours of sixteen Gaussians into columns of `to`, channel by channel.
LG_INLINE void load_colors(const Target& t, const Pose& pose, int64_t first, const Triple<Pack>& mean, unsigned mask,
                           float* to) {
  const Scene& scene = t.scene;
  if (scene.sh != nullptr) return evaluate_harmonics(t, pose, first, mean, mask, to);
  const int channels = scene.channels;
  const int64_t row =
      scene.colors_per_view ? static_cast<int64_t>(t.view) * scene.count + (first % scene.count) : first;
  const Rows rows(scene.colors, row, channels, mask);
  for (int c = 0; c < channels; ++c) {
    for (int i = 0; i < kLanes; ++i) to[c * kLanes + i] = rows.at[i][c];
  }
}

void store_records(const Target& t, int64_t local, const Projected<Pack>& g, unsigned mask, const float* features) {
  Pack fields[kRecordFloats];
  for (int f = 0; f < kRecordFloats; ++f) fields[f] = Pack(0.0f);
  fields[record::kX] = g.x;
  fields[record::kY] = g.y;
  fields[record::kUx] = g.ux;
  fields[record::kUy] = g.uy;
  fields[record::kVy] = g.vy;
  fields[record::kLog2Opacity] = g.log2_opacity;
  fields[record::kHalfWidth] = g.half_width;
  fields[record::kHalfHeight] = g.half_height;
  const int total = t.data.features.total();
  if (t.data.more_features == nullptr) {
#pragma GCC unroll 8
    for (int f = 0; f < kInlineFeatures; ++f) {
      if (f < total) fields[record::kFeatures + f] = column(features, f);
    }
  } else {
    each_lane(mask_from_bits(mask), [&](int i) {
      float* to = t.data.more_features + (local + i) * total;
      for (int f = 0; f < total; ++f) to[f] = features[f * kLanes + i];
    });
  }
  transpose_16(fields);
  for (int i = 0; i < kLanes; ++i) {
    if ((mask >> i & 1u) != 0) fields[i].store(t.data.records + (local + i) * kRecordFloats);
  }
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

template <Lens kLens, bool kCovariance>
int project_chunk(const Target& t, const Pose& pose, int64_t local, int used, float* features, uint64_t* pairs) {
  const View& view = t.views[t.view];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  prefetch_harmonics(t.scene, first + kLanes);
  const Gaussian<Pack> gaussian = load_gaussians<kCovariance>(t.scene, first, used);
  Projected<Pack> g = project<kLens, kCovariance>(view, pose, t.settings, gaussian);
  g.visible = g.visible & mask_from_bits((1u << used) - 1u);
  store_outputs(t, local, used, g);
  const unsigned mask = store_rectangles(g, t.data.rectangles + local, used);
  if (mask == 0) return 0;
  const Features& wanted = t.data.features;
  if (wanted.colors > 0) load_colors(t, pose, first, gaussian.mean, mask, features);
  int next = wanted.colors;
  if (wanted.depth) g.depth.store(features + next++ * kLanes);
  if (wanted.inverse_depth) (Pack(1.0f) / g.depth).store(features + next * kLanes);
  store_records(t, local, g, mask, features);
  return store_keys(g.depth, local, mask, used, pairs);
}

}  // namespace

uint64_t* project_view(const View* views, int view, const Settings& settings, const Scene& scene,
                       const Outputs& outputs, const ViewData& data, Workspace& w, Segments& segments) {
  const int64_t n = scene.count;
  uint64_t* pairs = w.pairs.ensure<uint64_t>(static_cast<std::size_t>(n));
  const Target target{views, view, settings, scene, outputs, data};
  segments.parts = parts_of(n);
  const std::size_t feature_floats = static_cast<std::size_t>(data.features.total() + 1) * kLanes;
  float* features = w.scratch.ensure<float>(feature_floats * segments.parts);
  for_parts(segments.parts, [&](int p) {
    // Whole chunks but for the last part's, so that they start at the same Gaussians with any number of threads.
    const int64_t chunks = (n + kLanes - 1) / kLanes;
    const int64_t begin = chunks * p / segments.parts * kLanes;
    const int64_t end = p + 1 == segments.parts ? n : chunks * (p + 1) / segments.parts * kLanes;
    int64_t visible = 0;
    with_lens(views[view], [&](auto lens) {
      each_slice(scene, begin, end, [&](int64_t from, int64_t to, int slice) {
        const Pose& pose = scene.poses[static_cast<int64_t>(view) * scene.slices + slice];
        constexpr Lens kLens = decltype(lens)::value;
        const auto run = scene.covariances != nullptr ? &project_chunk<kLens, true> : &project_chunk<kLens, false>;
        for (int64_t i = from; i < to; i += kLanes) {
          const int used = static_cast<int>(to - i < kLanes ? to - i : kLanes);
          visible += run(target, pose, i, used, features + p * feature_floats, pairs + begin + visible);
        }
      });
    });
    segments.begin[p] = begin;
    segments.length[p] = visible;
  });
  return pairs;
}

LG_END
