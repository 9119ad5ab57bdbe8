// Blends the ellipses of each tile.
#include "gaussians/cpu/blend.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct EllipsePixels {
  Pack x, y, transmittance;

  static LG_INLINE Pack kept_at_first(const TileOrigin& tile, int block) {
    return lane_x() + Pack(static_cast<float>(tile.left + block_left(block)) + tile.pixel_center);
  }
  LG_INLINE void place(int, int top, float pixel_center, Pack kept) {
    x = kept;
    y = lane_y() + Pack(static_cast<float>(top) + pixel_center);
  }
  LG_INLINE Pack kept() const { return x; }
  // Moves ended pixels away.
  LG_INLINE void end(MaskPack mask) { x = select(mask, Pack(kNowhere), x); }
  LG_INLINE MaskPack open() const { return x < Pack(0.5f * kNowhere); }
};

struct EllipseShape {
  static constexpr int kFirstFeature = record::kFeatures;
  static constexpr int kInlineFeatures = gaussians::kInlineFeatures;
  using Pixels = EllipsePixels;
  using Extra = NoExtra;

  static LG_INLINE Pack alpha_at(const float* r, const Pixels& pixels, const DrawLimits& limits) {
    const Ellipse<Pack> e = ellipse_of<Pack>(r);
    const Pack power = log2_alpha(e, e.x - pixels.x, e.y - pixels.y);
    return zero_unless(power >= limits.log2_alpha_min, min(exp2_bounded(power), limits.alpha_max));
  }
};

DrawTile choose(int features, bool count) {
  if (count) return &draw_tile<EllipseShape, 0, true>;
  switch (features) {
    case 1:
      return &draw_tile<EllipseShape, 1, false>;
    case 3:
      return &draw_tile<EllipseShape, 3, false>;
    case 4:
      return &draw_tile<EllipseShape, 4, false>;
    case 5:
      return &draw_tile<EllipseShape, 5, false>;
    default:
      return &draw_tile<EllipseShape, 0, false>;
  }
}

}  // namespace

void draw_view(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
               const ViewData& data, Workspace& w) {
  const int total = data.features.total();
  draw_tiles(views, view, settings, scene, outputs, data, choose(total, outputs.contributors != nullptr), total, w);
}

LG_END
