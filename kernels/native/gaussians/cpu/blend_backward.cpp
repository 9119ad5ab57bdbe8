// Differentiates the blending of ellipses.
#include "gaussians/cpu/blend_backward.h"

#include <algorithm>

#include "gaussians/cpu/rays/backward.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// Sums over sixteen pixels, in registers.
template <bool kAbsolute, int kFeatures>
struct Moments {
  Pack one, x, y, xx, xy, yy, abs_x, abs_y, a, b, c, d, e;
  LG_INLINE void clear() {
    one = x = y = xx = xy = yy = Pack(0.0f);
    if constexpr (kAbsolute) abs_x = abs_y = Pack(0.0f);
    if constexpr (kFeatures > 0) a = Pack(0.0f);
    if constexpr (kFeatures > 1) b = Pack(0.0f);
    if constexpr (kFeatures > 2) c = Pack(0.0f);
    if constexpr (kFeatures > 3) d = Pack(0.0f);
    if constexpr (kFeatures > 4) e = Pack(0.0f);
  }
  LG_INLINE void add_features(Pack weight, const float* v) {
    if constexpr (kFeatures > 0) a = fma(weight, Pack::load(v), a);
    if constexpr (kFeatures > 1) b = fma(weight, Pack::load(v + kLanes), b);
    if constexpr (kFeatures > 2) c = fma(weight, Pack::load(v + 2 * kLanes), c);
    if constexpr (kFeatures > 3) d = fma(weight, Pack::load(v + 3 * kLanes), d);
    if constexpr (kFeatures > 4) e = fma(weight, Pack::load(v + 4 * kLanes), e);
  }
  LG_INLINE void reduce(float* row) const {
    const Pack zero = Pack(0.0f);
    // Fields in the order of math/record.h.
    const Pack fields[kRecordFloats] = {one,
                                        x,
                                        y,
                                        xx,
                                        xy,
                                        yy,
                                        kAbsolute ? abs_x : zero,
                                        kAbsolute ? abs_y : zero,
                                        kFeatures > 0 ? a : zero,
                                        kFeatures > 1 ? b : zero,
                                        kFeatures > 2 ? c : zero,
                                        kFeatures > 3 ? d : zero,
                                        kFeatures > 4 ? e : zero,
                                        zero,
                                        zero,
                                        zero};
    add_sums_of_16(fields, row);
  }
};

// v . features.
template <int kFeatures>
LG_INLINE Pack light(const float* f, const float* v, int total) {
  Pack sum = Pack(0.0f);
  if constexpr (kFeatures > 0) {
    sum = Pack(f[0]) * Pack::load(v);
    if constexpr (kFeatures > 1) sum = fma(Pack(f[1]), Pack::load(v + kLanes), sum);
    if constexpr (kFeatures > 2) sum = fma(Pack(f[2]), Pack::load(v + 2 * kLanes), sum);
    if constexpr (kFeatures > 3) sum = fma(Pack(f[3]), Pack::load(v + 3 * kLanes), sum);
    if constexpr (kFeatures > 4) sum = fma(Pack(f[4]), Pack::load(v + 4 * kLanes), sum);
  } else {
    for (int i = 0; i < total; ++i) sum = fma(Pack(f[i]), Pack::load(v + i * kLanes), sum);
  }
  return sum;
}

template <bool kAbsolute, int kFeatures>
struct EllipseVisitor {
  Ellipse<Pack> ellipse;
  Pack conic_a, conic_b, conic_c;  // The conic, for absolute gradients.
  const float* features;
  int total;
  float* feature_sums;  // [features, 16], if features are not in registers.

  LG_INLINE EllipseVisitor(const Differentiation& d, uint32_t id, float* memory) {
    const float* record = d.data.records + static_cast<int64_t>(id) * kRecordFloats;
    ellipse = ellipse_of<Pack>(record);
    if constexpr (kAbsolute) {
      const float ux = record[record::kUx], uy = record[record::kUy], vy = record[record::kVy];
      conic_a = Pack(ux * ux / kHalfLog2E);
      conic_b = Pack(ux * uy / kHalfLog2E);
      conic_c = Pack((uy * uy + vy * vy) / kHalfLog2E);
    }
    features = kFeatures > 0 ? record + record::kFeatures : d.data.features_of(id);
    total = d.data.features.total();
    feature_sums = memory;
    if constexpr (kFeatures == 0) {
      for (int f = 0; f < total; ++f) Pack(0.0f).store(feature_sums + f * kLanes);
    }
  }
};

template <bool kAbsolute, int kFeatures>
LG_INLINE void visit_ellipse(const EllipseVisitor<kAbsolute, kFeatures>& g, const BackLimits& limits, float* block,
                             Moments<kAbsolute, kFeatures>& sums) {
  const Pack px = Pack::load(block + kUpX * kLanes);
  const Pack dx = g.ellipse.x - px, dy = g.ellipse.y - Pack::load(block + kUpY * kLanes);
  const Pack power = log2_alpha(g.ellipse, dx, dy), raw = exp2_bounded(power);
  const Pack before = Pack::load(block + kUpTransmittance * kLanes);
  MaskPack live = power >= limits.log2_alpha_min;
  Pack alpha = zero_unless(live, min(raw, limits.alpha_max));
  Pack after = fnma(alpha, before, before);
  const MaskPack ends = limits.strict ? after < limits.transmittance_min : after <= limits.transmittance_min;
  if (__builtin_expect(any(ends), 0)) {
    select(ends, Pack(kNowhere), px).store(block + kUpX * kLanes);
    live = live & ~ends;
    alpha = zero_unless(live, alpha);
    after = fnma(alpha, before, before);
  }
  const float* v = block + kUpFeatures * kLanes;
  const Pack weight = alpha * before, own = light<kFeatures>(g.features, v, g.total);
  const Pack rest = fnma(weight, own, Pack::load(block + kUpRest * kLanes));
  // Minus the gradient of alpha.
  const Pack against = fnma(before, own, rest * quick_inverse(Pack(1.0f) - alpha));
  after.store(block + kUpTransmittance * kLanes);
  rest.store(block + kUpRest * kLanes);
  const MaskPack moves = limits.passing ? live : live & (raw <= limits.alpha_max);
  const Pack v_sigma = zero_unless(moves, raw * against);
  const Pack vx = v_sigma * dx, vy = v_sigma * dy;
  sums.one = sums.one + v_sigma;
  sums.x = sums.x + vx;
  sums.y = sums.y + vy;
  sums.xx = fma(vx, dx, sums.xx);
  sums.xy = fma(vx, dy, sums.xy);
  sums.yy = fma(vy, dy, sums.yy);
  if constexpr (kAbsolute) {
    sums.abs_x = sums.abs_x + abs(fma(g.conic_a, vx, g.conic_b * vy));
    sums.abs_y = sums.abs_y + abs(fma(g.conic_b, vx, g.conic_c * vy));
  }
  if constexpr (kFeatures > 0) {
    sums.add_features(weight, v);
  } else {
    for (int f = 0; f < g.total; ++f) {
      float* to = g.feature_sums + f * kLanes;
      fma(weight, Pack::load(v + f * kLanes), Pack::load(to)).store(to);
    }
  }
}

template <bool kAbsolute, int kFeatures>
struct EllipseShape {
  using Visitor = EllipseVisitor<kAbsolute, kFeatures>;

  struct Sums : Moments<kAbsolute, kFeatures> {
    LG_INLINE void add_to(const Visitor& g, const RowTarget& to) const {
      this->reduce(to.fields);
      if constexpr (kFeatures == 0) {
        float* features = to.features != nullptr ? to.features : to.fields + gradient_row::kFeatures;
        for (int f = 0; f < g.total; ++f) features[f] += sum(Pack::load(g.feature_sums + f * kLanes));
      }
    }
  };

  static LG_INLINE void load(const Differentiation& d, int x, int y, float* block, double* background) {
    load_block(d.source, x, y, block, background);
  }
  static LG_INLINE void visit(const Visitor& g, const BackLimits& limits, float* block, Sums& sums) {
    visit_ellipse(g, limits, block, sums);
  }
};

template <bool kAbsolute>
DifferentiateTile choose(int features) {
  switch (features) {
    case 1:
      return &differentiate_tile<EllipseShape<kAbsolute, 1>>;
    case 3:
      return &differentiate_tile<EllipseShape<kAbsolute, 3>>;
    case 4:
      return &differentiate_tile<EllipseShape<kAbsolute, 4>>;
    case 5:
      return &differentiate_tile<EllipseShape<kAbsolute, 5>>;
    default:
      return &differentiate_tile<EllipseShape<kAbsolute, 0>>;
  }
}

}  // namespace

void differentiate_view(const View* views, int view, const Settings& settings, const Scene& scene, const Upstream& up,
                        const Gradients& gradients, Pass& pass, DifferentiateTile run, int block_packs, Workspace& w) {
  StageClock clock(w.milliseconds);
  ViewState& state = pass.view(view);
  const ViewData data = view_data(state, scene.count);
  const RowData rows = row_data(state);
  std::memset(rows.touched, 0, static_cast<std::size_t>(data.places));
  const Bands bands = make_bands(data, w);
  const int total = data.features.total(), block_floats = block_packs * kLanes;
  const std::size_t part_floats = static_cast<std::size_t>(kBlocks) * block_floats + (total + 1) * kLanes;
  float* memory = w.scratch.ensure<float>(part_floats * bands.count);
  const int channels = data.features.colors;
  double* backgrounds = w.sums.ensure<double>(static_cast<std::size_t>(channels + 8) * bands.count);
  const UpstreamSource source{views[view], view, settings, up, data.features};
  const bool needs_background = gradients.background != nullptr;
  const Differentiation d{data,
                          rows,
                          bands,
                          source,
                          {Pack(log2_positive(settings.alpha_min)), Pack(settings.alpha_max),
                           Pack(settings.transmittance_min), settings.inria != 0, settings.fork_gradients != 0},
                          gradients.means2d_abs != nullptr};
  for_parts(bands.count, [&](int band) {
    float* blocks = memory + band * part_floats;
    double* background = backgrounds + static_cast<std::size_t>(band) * (channels + 8);
    for (int c = 0; c < channels; ++c) background[c] = 0.0;
    const int first = std::max(bands.first[band], data.first_row), last = std::min(bands.first[band + 1], data.end_row);
    for (int tile = first * data.tiles_x; tile < last * data.tiles_x && !is_stopping(); ++tile) {
      run(d, band, tile, blocks, block_floats, blocks + static_cast<std::size_t>(kBlocks) * block_floats,
          needs_background ? background : nullptr);
    }
  });
  merge_bands(bands, rows, data);
  if (needs_background) {
    for (int c = 0; c < channels; ++c) {
      double sum = 0.0;
      for (int band = 0; band < bands.count; ++band)
        sum += backgrounds[static_cast<std::size_t>(band) * (channels + 8) + c];
      gradients.background[static_cast<int64_t>(view) * channels + c] = static_cast<float>(sum);
    }
  }
  clock.stage(kBackBlendStage);
}

void blend_backward(const View* views, int view, const Settings& settings, const Scene& scene, const Upstream& up,
                    const Gradients& gradients, Pass& pass, Workspace& w) {
  if (settings.rays) return blend_rays_backward(views, view, settings, scene, up, gradients, pass, w);
  if (settings.surfels) return blend_surfels_backward(views, view, settings, scene, up, gradients, pass, w);
  const int total = pass.view(view).features.total();
  const DifferentiateTile run = gradients.means2d_abs != nullptr ? choose<true>(total) : choose<false>(total);
  differentiate_view(views, view, settings, scene, up, gradients, pass, run, kUpFeatures + total, w);
}

LG_END
