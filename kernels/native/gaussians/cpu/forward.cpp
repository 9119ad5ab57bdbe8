// The forward pass of a view: project, sort by depth, bin, blend. Binning, which finds the tiles that each ellipse
// overlaps, is in this file; the other stages have their own.
#include <algorithm>

#include "gaussians/cpu/rays/stages.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// Tiles are tested in windows of 4 x 4.
constexpr int kWindow = 4;

struct TileRange {
  int x0, x1, y0, y1;  // Inclusive.
};

// The rendered tiles of a rectangle; empty if the last row lies before the first.
LG_INLINE TileRange tiles_of(const PixelRectangle& r, const ViewData& data) {
  const int y0 = r.y0 / kTileHeight, y1 = (r.y1 - 1) / kTileHeight;
  return {r.x0 / kTileWidth, (r.x1 - 1) / kTileWidth, y0 > data.first_row ? y0 : data.first_row,
          y1 < data.end_row ? y1 : data.end_row - 1};
}

// Bits of the tiles of the window at (x, y) that the ellipse reaches, within the range.
LG_INLINE unsigned window_mask(const float* r, float log2_alpha_min, float pixel_center, const TileRange& range, int x,
                               int y) {
  const Ellipse<Pack> e = ellipse_of<Pack>(r);
  const Pack left = (lane_x() + Pack(static_cast<float>(x))) * Pack(static_cast<float>(kTileWidth));
  const Pack top = (lane_y() + Pack(static_cast<float>(y))) * Pack(static_cast<float>(kTileHeight));
  const Pack x1 = e.x - Pack(pixel_center) - left, y1 = e.y - Pack(pixel_center) - top;
  const Pack x0 = x1 - Pack(kTileWidth - 1.0f), y0 = y1 - Pack(kTileHeight - 1.0f);
  const Pack best = best_log2_alpha(e, slopes_of(e), x0, x1, y0, y1);
  const unsigned hit = to_bits(best >= Pack(log2_alpha_min - kReachMargin));
  const int columns = range.x1 - x + 1 < kWindow ? range.x1 - x + 1 : kWindow;
  const int rows = range.y1 - y + 1 < kWindow ? range.y1 - y + 1 : kWindow;
  const unsigned inside = ((1u << columns) - 1u) * 0x1111u & ((1u << (kWindow * rows)) - 1u);
  return hit & inside;
}

template <class Visit>
LG_INLINE void each_bit(unsigned mask, int tile, int tiles_x, uint32_t id, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) {
    const int bit = __builtin_ctz(mask);
    visit(tile + bit / kWindow * tiles_x + bit % kWindow, id);
  }
}

}  // namespace

void bin_view(const Settings& settings, const ViewData& data, const uint64_t* pairs, const Segments& segments,
              ViewState& state, Workspace& w) {
  const float log2_alpha_min = log2_positive(settings.alpha_min);
  // Masks of Gaussians that reach at most one window of tiles, kept from the counting pass for the placing pass.
  uint16_t* masks = w.tile_masks.ensure<uint16_t>(static_cast<std::size_t>(segments.total()));
  const auto each = [&](int p, const auto& visit, bool counting) {
    constexpr int kAhead = 12;
    const int64_t end = segments.begin[p] + segments.length[p];
    TileWork work;
    for (int64_t i = segments.begin[p]; i < end; ++i) {
      if (i + kAhead < end) {
        const uint32_t ahead = static_cast<uint32_t>(pairs[i + kAhead]);
        __builtin_prefetch(data.rectangles + ahead);
        if (counting) __builtin_prefetch(data.ellipse(ahead));
      }
      const uint32_t id = static_cast<uint32_t>(pairs[i]);
      const TileRange range = tiles_of(data.rectangles[id], data);
      if (range.y1 < range.y0) continue;
      const int first = range.y0 * data.tiles_x + range.x0;
      if (range.x0 == range.x1 && range.y0 == range.y1) {
        visit(first, id);
        continue;
      }
      const float* record = data.ellipse(id);
      if (range.x1 - range.x0 < kWindow && range.y1 - range.y0 < kWindow) {
        if (counting) {
          masks[i] = static_cast<uint16_t>(
              window_mask(record, log2_alpha_min, settings.pixel_center, range, range.x0, range.y0));
        }
        each_bit(masks[i], first, data.tiles_x, id, visit);
        continue;
      }
      for (int y = range.y0; y <= range.y1; y += kWindow) {
        for (int x = range.x0; x <= range.x1; x += kWindow) {
          const unsigned mask = window_mask(record, log2_alpha_min, settings.pixel_center, range, x, y);
          each_bit(mask, y * data.tiles_x + x, data.tiles_x, id, visit);
        }
        if (work.stops_after(range.x1 - range.x0 + 1)) return;
      }
    }
  };
  fill_tile_lists(data.tiles_x * data.tiles_y, segments.parts, w.tile_counts, state.tile_starts, state.entries, each);
}

void forward_view(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
                  Pass& pass, Workspace& w) {
  StageClock clock(w.milliseconds);
  ViewState& state = pass.view(view);
  state.features = features_of(settings, scene, outputs);
  state.tiles_x = (views[view].width + kTileWidth - 1) / kTileWidth;
  state.tiles_y = (views[view].height + kTileHeight - 1) / kTileHeight;
  // Along rays all rows are rendered.
  const int first = settings.rays ? 0 : pass.first_row(), end = settings.rays ? kMaxExtent : pass.end_row();
  state.first_row = std::min(first / kTileHeight, state.tiles_y);
  state.end_row = std::min((end + kTileHeight - 1) / kTileHeight, state.tiles_y);
  Segments segments;
  RayField field{};
  if (settings.rays) {
    make_rays(views, view, scene, state);
    field = ray_field(state, scene, views[view], view);
  }
  const RayField* rays = settings.rays ? &field : nullptr;
  uint64_t* pairs = project_view(views, view, settings, scene, outputs, state, rays, w, segments);
  clock.stage(kProjectStage);
  if (state.first_row >= state.end_row) return;
  const uint64_t* sorted = sort_by_key(pairs, static_cast<int64_t>(state.places), segments, w.pairs_swap, w.histogram);
  clock.stage(kSortStage);
  ViewData data = view_data(state, scene.count);
  if (rays != nullptr) {
    bin_rays(data, field, sorted, segments, state, w);
  } else {
    bin_view(settings, data, sorted, segments, state, w);
  }
  data = view_data(state, scene.count);
  data.masks = state.masks.ensure<uint32_t>(data.tile_starts[state.tiles_x * state.tiles_y]);
  clock.stage(kBinStage);
  if (rays != nullptr) {
    draw_rays(views, view, settings, scene, outputs, data, field, w);
  } else if (settings.surfels) {
    draw_surfels(views, view, settings, scene, outputs, data, w);
  } else {
    draw_view(views, view, settings, scene, outputs, data, w);
  }
  clock.stage(kBlendStage);
}

LG_END
