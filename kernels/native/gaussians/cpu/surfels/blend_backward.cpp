// Differentiates the blending of surfels (sensors spec section 7).
#include "gaussians/cpu/blend_backward.h"
#include "gaussians/cpu/feature_sums.h"
#include "gaussians/math/surfel_project.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// The state of a block's pixels after the fields of cpu/upstream.h and the features: log2 of the smallest alpha that
// counts (unreachable if a pixel has ended); the gradients of the median depth and of the distortion; and the sums of
// weights, of weights times depths, and of weights times depths in front of the next surfel.
enum SurfelField { kLimit, kVMedian, kVDistortion, kAlpha, kDepth, kInFront, kSurfelFields };

template <int kFeatures, bool kDepths>
struct SurfelVisitor {
  const float* record;
  const float* bounds;
  const float* features;
  int total, depth;  // The number of features, and the number of the depth.
  bool absolute;
  float* feature_sums;  // [features, 16], if features are not in registers.

  LG_INLINE SurfelVisitor(const Differentiation& d, uint32_t id, float* memory)
      : record(d.data.records + static_cast<int64_t>(id) * kRecordFloats),
        bounds(d.data.ellipse(id)),
        features(d.data.features_of(id)),
        total(d.data.features.total()),
        depth(d.data.features.colors),
        absolute(d.absolute),
        feature_sums(memory) {
    if constexpr (kFeatures == 0) {
      for (int f = 0; f < total; ++f) Pack(0.0f).store(feature_sums + f * kLanes);
    }
  }
};

// Sums over sixteen pixels.
template <int kFeatures, bool kDepths>
struct SurfelSums : SurfelRow<Pack> {
  Pack at[kFeatures > 0 ? kFeatures : 1];
  Pack more_depth;  // Gradient of the depth, besides its gradient as a feature.

  LG_INLINE void clear() {
    const Pack zero = Pack(0.0f);
    static_cast<SurfelRow<Pack>&>(*this) = {zero, zero, zero, zero, zero, zero, zero,
                                            zero, zero, zero, zero, zero, zero, zero};
    for (Pack& sum : at) sum = zero;
    more_depth = zero;
  }
  LG_INLINE void add_to(const SurfelVisitor<kFeatures, kDepths>& g, const RowTarget& to) const {
    const Pack zero = Pack(0.0f);
    const Pack fields[kRecordFloats] = {one, u, v, ux, uy, vx, vy, n, nx, ny, disc_x, disc_y, abs_x, abs_y, zero, zero};
    add_sums_of_16(fields, to.fields);
    float* features = to.features != nullptr ? to.features : to.fields + surfel_row::kUsed;
    if constexpr (kFeatures > 0) {
      for (int f = 0; f < kFeatures; ++f) features[f] += sum(at[f]);
    } else {
      for (int f = 0; f < g.total; ++f) features[f] += sum(Pack::load(g.feature_sums + f * kLanes));
    }
    if constexpr (kDepths) features[g.depth] += sum(more_depth);
  }
};

// Adds the gradient of a surfel's depth through the median and the distortion; returns the gradient of its weight.
template <int kFeatures, bool kDepths>
LG_INLINE Pack visit_depths(const SurfelVisitor<kFeatures, kDepths>& g, float* own, MaskPack live, Pack weight,
                            Pack before, Pack after, Pack alpha_min, SurfelSums<kFeatures, kDepths>& sums) {
  const Pack half = Pack(0.5f), z = Pack(g.features[g.depth]);
  const auto at = [&](int field) { return Pack::load(own + field * kLanes); };
  const Pack alpha = at(kAlpha), in_front = at(kInFront), v = at(kVDistortion);
  const DistortionSlope<Pack> slope = distortion_slope(weight, z, before, in_front, alpha, at(kDepth));
  fma(weight, z, in_front).store(own + kInFront * kLanes);
  // True for the last contributor: another one would take at least alpha_min of the transmittance.
  const MaskPack last = after * fnma(half, alpha_min, Pack(1.0f)) <= Pack(1.0f) - alpha;
  const MaskPack median = live & (before > half) & ((after <= half) | last);
  sums.more_depth = sums.more_depth + fma(v, slope.depth, zero_unless(median, at(kVMedian)));
  return v * slope.weight;
}

template <int kFeatures, bool kDepths>
LG_INLINE void visit_surfel(const SurfelVisitor<kFeatures, kDepths>& g, const BackLimits& limits, float* block,
                            SurfelSums<kFeatures, kDepths>& sums) {
  const int total = kFeatures > 0 ? kFeatures : g.total;
  float* own = block + (kUpFeatures + total) * kLanes;
  const SurfelPixel<Pack> s = surfel_at(g.record, Pack::load(block + kUpX * kLanes), Pack::load(block + kUpY * kLanes));
  const Pack limit = Pack::load(own + kLimit * kLanes);
  MaskPack live = (s.power >= limit) & s.exists;
  if (!any(live)) return;
  const Pack raw = exp2_bounded(s.power), before = Pack::load(block + kUpTransmittance * kLanes);
  Pack alpha = zero_unless(live, min(raw, limits.alpha_max)), after = fnma(alpha, before, before);
  const MaskPack ends = after <= limits.transmittance_min;
  if (__builtin_expect(any(ends), 0)) {
    select(ends, Pack(kNowhere), limit).store(own + kLimit * kLanes);
    live = live & ~ends;
    alpha = zero_unless(live, alpha);
    after = fnma(alpha, before, before);
  }
  const float* v = block + kUpFeatures * kLanes;
  const Pack weight = alpha * before;
  Pack toward = Pack(0.0f);
  for (int f = 0; f < total; ++f) toward = fma(Pack(g.features[f]), Pack::load(v + f * kLanes), toward);
  if constexpr (kDepths) {
    toward = toward + visit_depths(g, own, live, weight, before, after, exp2_bounded(limits.log2_alpha_min), sums);
  }
  const Pack rest = fnma(weight, toward, Pack::load(block + kUpRest * kLanes));
  // Minus the gradient of alpha.
  const Pack against = fnma(before, toward, rest * quick_inverse(Pack(1.0f) - alpha));
  after.store(block + kUpTransmittance * kLanes);
  rest.store(block + kUpRest * kLanes);
  const Pack v_sigma = zero_unless(live & (raw <= limits.alpha_max), raw * against);
  add_to_row(s, v_sigma, sums);
  if (g.absolute) {
    const Pair<Pack> tilt = {Pack(g.bounds[record::kHalfWidth]), Pack(g.bounds[record::kHalfHeight])};
    add_absolute(g.record, tilt, s, v_sigma, sums.abs_x, sums.abs_y);
  }
  if constexpr (kFeatures > 0) {
    for (int f = 0; f < kFeatures; ++f) sums.at[f] = fma(weight, Pack::load(v + f * kLanes), sums.at[f]);
  } else {
    for (int f = 0; f < total; ++f) {
      float* to = g.feature_sums + f * kLanes;
      fma(weight, Pack::load(v + f * kLanes), Pack::load(to)).store(to);
    }
  }
}

template <int kFeatures, bool kDepths>
struct SurfelShape {
  using Visitor = SurfelVisitor<kFeatures, kDepths>;
  using Sums = SurfelSums<kFeatures, kDepths>;

  static LG_INLINE void load(const Differentiation& d, int x, int y, float* block, double* background) {
    const UpstreamSource& s = d.source;
    load_block(s, x, y, block, background);
    float* own = block + (kUpFeatures + s.features.total()) * kLanes;
    for (int f = 0; f < kSurfelFields; ++f) Pack(0.0f).store(own + f * kLanes);
    d.limits.log2_alpha_min.store(own + kLimit * kLanes);
    if (!kDepths || x >= s.view.width || y >= s.view.height) return;
    const BlockPixels pixels(s.view, s.number, x, y);
    const Pack v_distortion = load_plane(pixels, s.up.d_distortion);
    load_plane(pixels, s.up.d_median_depth).store(own + kVMedian * kLanes);
    v_distortion.store(own + kVDistortion * kLanes);
    (Pack(1.0f) - load_plane(pixels, s.up.transmittance)).store(own + kAlpha * kLanes);
    load_plane(pixels, s.up.depth).store(own + kDepth * kLanes);
    if (s.up.d_distortion == nullptr) return;
    // The distortion is of second degree in the weights.
    const Pack rest = Pack::load(block + kUpRest * kLanes);
    fma(v_distortion + v_distortion, load_plane(pixels, s.up.distortion), rest).store(block + kUpRest * kLanes);
  }
  static LG_INLINE void visit(const Visitor& g, const BackLimits& limits, float* block, Sums& sums) {
    visit_surfel(g, limits, block, sums);
  }
};

DifferentiateTile choose(const Features& features, bool of_depths) {
  const int total = features.total();
  if (of_depths) {
    return total == 7 ? &differentiate_tile<SurfelShape<7, true>> : &differentiate_tile<SurfelShape<0, true>>;
  }
  switch (total) {
    case 3:
      return &differentiate_tile<SurfelShape<3, false>>;
    case 4:
      return &differentiate_tile<SurfelShape<4, false>>;
    case 7:
      return &differentiate_tile<SurfelShape<7, false>>;
    default:
      return &differentiate_tile<SurfelShape<0, false>>;
  }
}

}  // namespace

void blend_surfels_backward(const View* views, int view, const Settings& settings, const Scene& scene,
                            const Upstream& up, const Gradients& gradients, Pass& pass, Workspace& w) {
  const Features& features = pass.view(view).features;
  const bool of_depths = up.d_median_depth != nullptr || up.d_distortion != nullptr;
  differentiate_view(views, view, settings, scene, up, gradients, pass, choose(features, of_depths),
                     kUpFeatures + features.total() + kSurfelFields, w);
}

LG_END
