// Blends the surfels of each tile (sensors spec section 7).
#include "gaussians/cpu/blend.h"
#include "gaussians/math/surfel.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct SurfelPixels {
  Pack x, y, transmittance;
  Pack limit;  // log2 of the smallest alpha that counts, unreachable if a pixel has ended.

  static LG_INLINE Pack kept_at_first(const TileOrigin& tile, int) { return Pack(tile.log2_alpha_min); }
  LG_INLINE void place(int left, int top, float pixel_center, Pack kept) {
    x = lane_x() + Pack(static_cast<float>(left) + pixel_center);
    y = lane_y() + Pack(static_cast<float>(top) + pixel_center);
    limit = kept;
  }
  LG_INLINE Pack kept() const { return limit; }
  LG_INLINE void end(MaskPack mask) { limit = select(mask, Pack(kNowhere), limit); }
  LG_INLINE MaskPack open() const { return limit < Pack(0.5f * kNowhere); }
};

// The median of the depths and their distortion.
struct DepthExtra {
  static constexpr int kFloats = 3;
  DepthSums<Pack> sums;
  int depth;  // The feature's number.

  LG_INLINE void load(const float* from, const Features& features) {
    sums = {Pack::load(from), Pack::load(from + kLanes), Pack::load(from + 2 * kLanes)};
    depth = features.colors;
  }
  LG_INLINE void store(float* to) const {
    sums.median.store(to);
    sums.distortion.store(to + kLanes);
    sums.depth.store(to + 2 * kLanes);
  }
  LG_INLINE void add(Pack weight, Pack before, const float* features) {
    add_depth(sums, weight > Pack(0.0f), weight, before, Pack(features[depth]));
  }
};

template <class ExtraSums>
struct SurfelShape {
  static constexpr int kFirstFeature = surfel_record::kFeatures;
  static constexpr int kInlineFeatures = kInlineSurfelFeatures;
  using Pixels = SurfelPixels;
  using Extra = ExtraSums;

  static LG_INLINE Pack alpha_at(const float* r, const Pixels& pixels, const DrawLimits& limits) {
    const SurfelPixel<Pack> s = surfel_at(r, pixels.x, pixels.y);
    return zero_unless((s.power >= pixels.limit) & s.exists, min(exp2_bounded(s.power), limits.alpha_max));
  }
};

template <class Extra>
DrawTile choose(int features, bool count) {
  using Shape = SurfelShape<Extra>;
  if (count) return &draw_tile<Shape, 0, true>;
  switch (features) {
    case 3:
      return &draw_tile<Shape, 3, false>;
    case 4:
      return &draw_tile<Shape, 4, false>;
    case 7:
      return &draw_tile<Shape, 7, false>;
    default:
      return &draw_tile<Shape, 0, false>;
  }
}

}  // namespace

void draw_surfels(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
                  const ViewData& data, Workspace& w) {
  const int total = data.features.total();
  const bool of_depths = data.features.of_depths(), count = outputs.contributors != nullptr;
  const DrawTile draw = of_depths ? choose<DepthExtra>(total, count) : choose<NoExtra>(total, count);
  draw_tiles(views, view, settings, scene, outputs, data, draw, total + (of_depths ? DepthExtra::kFloats : 0), w);
}

LG_END
