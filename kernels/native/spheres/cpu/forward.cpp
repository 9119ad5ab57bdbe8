// The forward pass on the CPU: tiles in parallel, blocks of 4x4 pixels in packs.
#include "common/threads.h"
#include "spheres/cpu/output.h"

LG_BEGIN_ENGINE(spheres)
namespace {

template <bool kExact>
void initialise(const Camera& camera, const Settings& settings, const Scene& scene, int track, float* state) {
  const ExactView exact = exact_view(camera, settings);
  const auto fill = [&](int field, float value) { Pack(value).store(state + field * kLanes); };
  fill(kMaximum, kExact ? exact.background_high : settings.background_depth / settings.gamma);
  fill(kMaximumLow, kExact ? exact.background_low : 1.0f);
  fill(kDenominator, 1.0f);
  fill(kMaxNear, -1.0f);
  fill(kHits, 0.0f);
  fill(kLoaded, 0.0f);
  fill(kActive, 1.0f);
  store_int(state + kStop * kLanes, IntPack(0x7fffffff));
  for (int c = 0; c < scene.channels; ++c) fill(kBlockFields + c, scene.background[c]);
  for (int t = 0; t < track; ++t) {
    fill(kBlockFields + scene.channels + t, kNoDepth);
    store_int(state + (kBlockFields + scene.channels + track + t) * kLanes, IntPack(-1));
  }
}

template <bool kExact, bool kOrthogonal, int kChannels, int kTrack>
void draw_block(const Camera& camera, const DrawArguments& arguments, const TileScratch& scratch, int block, int x,
                int y, int position, int length) {
  float* state = scratch.blocks + static_cast<std::size_t>(block) * block_floats(arguments.channels, arguments.track);
  if (!any(Pack::load(state + kActive * kLanes) > Pack(0.0f))) return;
  const Pack px = lane_x() + Pack(static_cast<float>(x)), py = lane_y() + Pack(static_cast<float>(y));
  if constexpr (kExact) {
    const ExactView& view = arguments.exact;
    const ExactRay<Pack> ray = exact_ray<Pack, kOrthogonal>(view, px, py);
    const int count = find_exact<kOrthogonal, kTrack>(*scratch.batch, block, ray, view, scratch.events, scratch.shapes);
    shape_exact<kOrthogonal, kTrack>(*scratch.batch, view, x, y, scratch.events, count, scratch.shapes,
                                     scratch.outlines);
    draw_exact<kOrthogonal, kChannels, kTrack>(*scratch.batch, scratch.shapes, camera, arguments, state, scratch.events,
                                               count, position, length);
  } else {
    const CompatView& view = arguments.compat;
    const CompatRay<Pack> ray = compat_ray<Pack, kOrthogonal>(camera, px + Pack(static_cast<float>(camera.border_x)),
                                                              py + Pack(static_cast<float>(camera.border_y)));
    const int count =
        find_compat<kOrthogonal>(*scratch.batch, block, ray, state, scratch.events, scratch.checks, scratch.shapes);
    shape_compat<kOrthogonal>(*scratch.batch, ray, view, scratch.events, count, scratch.shapes);
    draw_compat<kChannels, kTrack>(*scratch.batch, scratch.shapes, view, arguments, state, scratch.events,
                                   scratch.checks, count);
  }
}

// Renders tile number `tile` and assembles its images. Meanwhile it writes the previous tile's images, row by row:
// written all at once, the CPU would wait for memory.
template <bool kExact, bool kOrthogonal, int kChannels, int kTrack>
void draw_tile(const Camera& camera, const DrawArguments& arguments, const Prepared& prepared, const Outputs& outputs,
               const TileScratch& scratch, TileImages& images, TileImages& before, int tile) {
  const int tile_x = tile % prepared.tiles_x, tile_y = tile / prepared.tiles_x;
  const uint32_t begin = prepared.tile_starts[tile], end = prepared.tile_starts[tile + 1];
  const int length = static_cast<int>(end - begin);
  const int floats = block_floats(arguments.channels, arguments.track);
  initialise<kExact>(camera, *arguments.settings, *arguments.scene, arguments.track, scratch.blocks);
  for (int b = 1; b < kBlocks; ++b) {
    __builtin_memcpy(scratch.blocks + static_cast<std::size_t>(b) * floats, scratch.blocks, sizeof(float) * floats);
  }
  images.left = tile_x * kTileWidth;
  images.top = tile_y * kTileHeight;
  images.row = 0;
  for (int position = 0; position < length; position += kBatch) {
    const int count = length - position < kBatch ? length - position : kBatch;
    if (is_stopping()) return;
    fill_batch(*scratch.batch, prepared, tile_x, tile_y, prepared.entries + begin + position, count);
    // Prefetches the next batch while this one is blended.
    request_batch(prepared, prepared.entries + begin + position + count, length - position - count);
    for (int b = 0; b < kBlocks; ++b) {
      if (b % (kBlocks / kTileHeight) == 0) write_rows(camera, arguments, outputs, before, 1);
      if (scratch.batch->lengths[b] == 0) continue;
      draw_block<kExact, kOrthogonal, kChannels, kTrack>(camera, arguments, scratch, b, images.left + b % kBlocksX * 4,
                                                         images.top + b / kBlocksX * 4, position, length);
    }
  }
  write_rows(camera, arguments, outputs, before, kTileHeight);
  for (int b = 0; b < kBlocks; ++b) {
    write_block<kExact>(camera, arguments, prepared, outputs, scratch.blocks + static_cast<std::size_t>(b) * floats,
                        images, b);
  }
}

using DrawTile = void (*)(const Camera&, const DrawArguments&, const Prepared&, const Outputs&, const TileScratch&,
                          TileImages&, TileImages&, int);

template <bool kExact, bool kOrthogonal>
DrawTile choose(int channels, int track) {
  if (channels == 3 && track == 5) return &draw_tile<kExact, kOrthogonal, 3, 5>;
  if (channels == 3 && track == 0) return &draw_tile<kExact, kOrthogonal, 3, 0>;
  return &draw_tile<kExact, kOrthogonal, kAnyCount, kAnyCount>;
}

}  // namespace

void forward(const Camera& camera, const Settings& settings, const Scene& scene, const Outputs& outputs,
             Workspace& workspace) {
  StageClock clock(workspace.milliseconds);
  const Prepared prepared = prepare(camera, settings, scene, workspace, clock);
  const DrawArguments arguments{.scene = &scene,
                                .settings = &settings,
                                .exact = exact_view(camera, settings),
                                .compat = compat_view(camera, settings),
                                .channels = scene.channels,
                                .track = settings.n_track,
                                .info = outputs.info != nullptr,
                                .counted = outputs.hits != nullptr || settings.max_hits <= 0x7fffffffu,
                                .background = outputs.alpha != nullptr};
  const DrawTile draw = settings.exact ? (camera.orthogonal ? choose<true, true>(scene.channels, settings.n_track)
                                                            : choose<true, false>(scene.channels, settings.n_track))
                                       : (camera.orthogonal ? choose<false, true>(scene.channels, settings.n_track)
                                                            : choose<false, false>(scene.channels, settings.n_track));
  const int tiles = prepared.tiles_x * prepared.tiles_y;
  const int threads = thread_count() < tiles ? thread_count() : tiles;
  const std::size_t bytes = tile_scratch_bytes(scene.channels, settings.n_track);
  char* memory = workspace.scratch.ensure<char>(bytes * threads);
  int next = 0;
  for_parts(threads, [&](int part) {
    TileScratch scratch = tile_scratch(memory + bytes * part, scene.channels, settings.n_track);
    const auto take = [&] {
      const int tile = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
      if (tile < tiles) {
        const uint32_t begin = prepared.tile_starts[tile];
        request_batch(prepared, prepared.entries + begin, static_cast<int>(prepared.tile_starts[tile + 1] - begin));
      }
      return tile;
    };
    // Spheres of the next tile are prefetched while this tile is rendered.
    int drawn = 0;
    for (int tile = take(); tile < tiles && !is_stopping(); ++drawn) {
      const int ahead = take();
      draw(camera, arguments, prepared, outputs, scratch, scratch.images[drawn % 2], scratch.images[1 - drawn % 2],
           tile);
      tile = ahead;
    }
    for (TileImages& images : scratch.images) write_rows(camera, arguments, outputs, images, kTileHeight);
  });
  clock.stage(kBlendStage);
}

LG_END
