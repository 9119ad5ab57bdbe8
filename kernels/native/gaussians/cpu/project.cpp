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

void store_rectangles(const Projected<Pack>& g, PixelRectangle* to, int used) {
  alignas(64) int x0[kLanes], x1[kLanes], y0[kLanes], y1[kLanes];
  truncate(zero_unless(g.visible, g.left)).store(x0);
  truncate(zero_unless(g.visible, g.right)).store(x1);
  truncate(zero_unless(g.visible, g.top)).store(y0);
  truncate(zero_unless(g.visible, g.bottom)).store(y1);
  const unsigned visible = to_bits(g.visible);
  for (int i = 0; i < used; ++i) {
    const bool empty = x1[i] <= x0[i] || y1[i] <= y0[i];
    to[i] = empty ? ((visible >> i & 1u) != 0 ? kNoPixels : kCulled)
                  : PixelRectangle{static_cast<uint16_t>(x0[i]), static_cast<uint16_t>(x1[i]),
                                   static_cast<uint16_t>(y0[i]), static_cast<uint16_t>(y1[i])};
  }
}

template <int kDegree>
LG_INLINE Pack evaluate(const Triple<Pack>& d, const float* columns, int step) {
  Pack sum = Pack(0.5f);
  each_harmonic<kDegree>(
      d, [&](int k, Pack value, const Triple<Pack>&) { sum = fma(value, column(columns, k * step), sum); });
  return max(sum, Pack(0.0f));
}

// Colours of sixteen Gaussians into columns of `to`, channel by channel.
void load_colors(const Target& t, const Pose& pose, int64_t first, const Triple<Pack>& mean, unsigned mask, float* to) {
  const Scene& scene = t.scene;
  const int channels = scene.channels;
  if (scene.sh == nullptr) {
    const int64_t row =
        scene.colors_per_view ? static_cast<int64_t>(t.view) * scene.count + (first % scene.count) : first;
    const Rows rows(scene.colors, row, channels, mask);
    for (int c = 0; c < channels; ++c) {
      for (int i = 0; i < kLanes; ++i) to[c * kLanes + i] = rows.at[i][c];
    }
    return;
  }
  const Rows rows(scene.sh, first, static_cast<int64_t>(scene.coefficients) * channels, mask);
  const Direction<Pack> direction = direction_to(pose, mean);
  const int degree = t.settings.sh_degree, active = (degree + 1) * (degree + 1);
  Coefficients coefficients;
  for (int c = 0; c < channels; ++c) {
    const bool few = channels == kFewChannels;
    if (c == 0 || !few) coefficients.load(rows, active, channels, c);
    const float* columns = coefficients.columns + (few ? c * kLanes : 0);
    with_constant<kMaxDegree>(degree, [&](auto constant) {
      evaluate<decltype(constant)::value>(direction.d, columns, few ? channels : 1).store(to + c * kLanes);
    });
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
    for (int f = 0; f < total; ++f) fields[record::kFeatures + f] = column(features, f);
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

// Keys that sort as the floats do, negative ones included.
LG_INLINE uint32_t sortable(float depth) {
  const uint32_t b = static_cast<uint32_t>(bits(depth));
  return b ^ ((b >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

template <Lens kLens, bool kCovariance>
int project_chunk(const Target& t, const Pose& pose, int64_t local, int used, float* features, uint64_t* pairs) {
  const View& view = t.views[t.view];
  const int64_t first = static_cast<int64_t>(view.scene) * t.scene.count + local;
  const Gaussian<Pack> gaussian = load_gaussians<kCovariance>(t.scene, first, used);
  Projected<Pack> g = project<kLens, kCovariance>(view, pose, t.settings, gaussian);
  g.visible = g.visible & mask_from_bits((1u << used) - 1u);
  store_outputs(t, local, used, g);
  store_rectangles(g, t.data.rectangles + local, used);
  unsigned mask = to_bits(g.visible);
  for (int i = 0; i < used; ++i) {
    if (!has_pixels(t.data.rectangles[local + i])) mask &= ~(1u << i);
  }
  if (mask == 0) return 0;
  const Features& wanted = t.data.features;
  if (wanted.colors > 0) load_colors(t, pose, first, gaussian.mean, mask, features);
  int next = wanted.colors;
  if (wanted.depth) g.depth.store(features + next++ * kLanes);
  if (wanted.inverse_depth) (Pack(1.0f) / g.depth).store(features + next * kLanes);
  store_records(t, local, g, mask, features);
  alignas(64) float depth[kLanes];
  g.depth.store(depth);
  int count = 0;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    pairs[count++] = static_cast<uint64_t>(sortable(depth[i])) << 32 | static_cast<uint32_t>(local + i);
  }
  return count;
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
