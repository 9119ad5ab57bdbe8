// Forward: project, sort by depth, bin, draw.
#include "gaussians/cpu_view.h"

LG_BEGIN_ENGINE(gaussians)

void forward_view(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
                  Pass& pass, Workspace& w) {
  StageClock clock(w.milliseconds);
  ViewState& state = pass.view(view);
  state.features = features_of(scene, outputs);
  state.tiles_x = (views[view].width + kTileWidth - 1) / kTileWidth;
  state.tiles_y = (views[view].height + kTileHeight - 1) / kTileHeight;
  Segments segments;
  ViewData data = view_data(state, scene.count);
  uint64_t* pairs = project_view(views, view, settings, scene, outputs, data, w, segments);
  clock.stage(kProjectStage);
  const uint64_t* sorted = sort_by_key(pairs, scene.count, segments, w.pairs_swap, w.histogram);
  clock.stage(kSortStage);
  bin_view(settings, data, sorted, segments, state, w);
  data = view_data(state, scene.count);
  data.masks = state.masks.ensure<uint32_t>(data.tile_starts[state.tiles_x * state.tiles_y]);
  clock.stage(kBinStage);
  draw_view(views, view, settings, scene, outputs, data, w);
  clock.stage(kBlendStage);
}

LG_END
