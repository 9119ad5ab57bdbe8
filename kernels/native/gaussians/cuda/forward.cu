// The forward pass on the device: project, sort by depth, list the Gaussians of each tile, blend.
#include <string>
#include <utility>

#include "common/room.h"
#include "gaussians/cuda/rays/field.cuh"
#include "gaussians/cuda/rays/stages.h"
#include "gaussians/cuda/reach.cuh"
#include "gaussians/cuda/surfels/stages.h"

namespace lumigrad::gaussians {
namespace {

// State that the stages of a call share.
struct Forward {
  const CudaCallData& data;
  const Outputs& outputs;
  CudaPass& pass;
  CudaWorkspace& workspace;
  DeviceTimer& timer;
  cudaStream_t stream;

  const CudaCall& call() const { return data.call(); }
  std::size_t items() const { return static_cast<std::size_t>(call().views) * call().scene.count; }
  std::size_t tiles() const { return static_cast<std::size_t>(call().views) * pass.lists.tiles_x * pass.lists.tiles_y; }
  PairCapacities::Kind kind() const { return {call().views, call().width, call().height, items()}; }
  std::size_t pixels() const { return static_cast<std::size_t>(call().views) * call().width * call().height; }
};

// Arrays of the items that are needed until those of each tile are listed.
struct Unlisted {
  DeviceBuffer<unsigned> keys;
  TileCountBuffers counts;
};

// Items and tiles are numbered in 32 bits.
void check_size(std::size_t items, std::size_t tiles) {
  constexpr std::size_t kMost = 0x7FFFFFFF;
  if (items <= kMost && tiles <= kMost) return;
  throw DeviceMemoryError("views times Gaussians and tiles of all views must stay below 2^31, but there are " +
                          std::to_string(items) + " and " + std::to_string(tiles) + "; render fewer views at a time");
}

// Lists the tiles' Gaussians if there are not too many.
template <class Reach>
void list(const Forward& f, const Reach& reach, const TileCountBuffers& counts) {
  const std::size_t pairs = f.workspace.pairs.wait(), limit = pairs_within_room(f.workspace.pair_limit);
  if (f.workspace.capacities) f.workspace.capacities->note(f.kind(), pairs);
  if (pairs <= limit) return list_tiles<Entry::item>(reach, counts, pairs, f.pass.lists, f.pass.tiles, f.stream);
  // Rows for each pair do not exist without lists.
  if (!f.call().settings.deterministic) return leave_unlisted(f.pass.lists, f.pass.tiles, f.stream);
  throw DeviceMemoryError(std::to_string(pairs) + " pairs of tiles and Gaussians, each with a row of gradients, are" +
                          " more than the " + std::to_string(limit) + " that deterministic sums may have");
}

// The same, without waiting for their number, if there is room for them.
template <class Reach>
void list_within(const Forward& f, const Reach& reach, TileCountBuffers counts, std::size_t room) {
  f.workspace.capacities->copy(f.kind(), counts.counts().pairs, f.stream);
  f.pass.lists.counted = counts.counts().pairs;
  list_tiles<Entry::item>(reach, counts, room, f.pass.lists, f.pass.tiles, f.stream);
  // The counts live as long as the lists.
  f.pass.tiles.counted = counts.take_pairs();
}

// The pairs to make room for without knowing their number; 0: it has to be known.
std::size_t room_for(const Forward& f) {
  if (!f.workspace.capacities || f.call().settings.deterministic) return 0;
  return f.workspace.capacities->room_for(f.kind(), pairs_within_room(f.workspace.pair_limit));
}

// Sorts items by depth and lists those of each tile.
template <class Reach>
void order(const Forward& f, const Reach& reach, Unlisted items) {
  const std::size_t room = room_for(f);
  if (room == 0) f.workspace.pairs.copy(items.counts.counts().pairs, f.stream);
  f.timer.mark("project");
  sort_by_depth(items.keys, f.call().scene.count, f.pass.lists, f.pass.tiles, f.stream);
  f.timer.mark("sort");
  if (room == 0) {
    list(f, reach, items.counts);
  } else {
    list_within(f, reach, std::move(items.counts), room);
  }
  f.timer.mark("bin");
}

void draw_surfels(const Forward& f, const ProjectTarget& to, Unlisted items) {
  CudaPass& pass = f.pass;
  const DeviceBuffer<float4> ellipses(f.items() * kEllipseQuarters, f.stream);
  pass.medians = DeviceBuffer<int>(pass.features.median_depth ? f.pixels() : 0, f.stream);
  cuda_project_surfels(f.call(), to, ellipses.data(), f.stream);
  cuda_colors(f.call(), to.records, f.stream);
  order(f, GaussianReach{ellipses.data(), kEllipseQuarters, to.limits}, std::move(items));
  cuda_draw_surfels(f.call(), to.records, pass.lists, f.outputs, pass.lasts.data(), pass.medians.data(), f.stream);
}

void draw_rays(const Forward& f, const ProjectTarget& to, Unlisted items) {
  CudaPass& pass = f.pass;
  ProjectTarget on_film = to;
  on_film.counts = {};
  cuda_project(f.data, on_film, f.stream);
  pass.rays = DeviceBuffer<float>(f.tiles() * kTilePixels * kRayFloats, f.stream);
  const DeviceBuffer<unsigned long long> masks(f.items(), f.stream);
  cuda_rays(f.data, pass.lists, to, pass.rays.data(), masks.data(), f.stream);
  cuda_colors(f.call(), to.records, f.stream);
  order(f, RayReach{to.records, masks.data()}, std::move(items));
  cuda_draw_rays(f.call(), to.records, pass.lists, pass.rays.data(), f.outputs, pass.lasts.data(), f.stream);
}

// Makes room for what the segments of lists need, if a backward pass may use it. Without the room for it that pass goes
// through whole lists.
void reserve_segments(const Forward& f) {
  CudaPass& pass = f.pass;
  const int features = pass.features.total();
  if (!pass.differentiable || pass.lists.entries == nullptr || features > kInlineFeatures) return;
  const std::size_t places = pass.lists.pairs / kSegment + 1, floats = places * kTilePixels * (1 + features);
  const MemoryRoom* room = memory_room();
  const std::size_t bytes = floats * sizeof(float) + places * sizeof(unsigned);
  if (pass.lists.pairs <= kSegment || (room != nullptr && room->left() < static_cast<std::int64_t>(bytes))) return;
  pass.segments = DeviceBuffer<float>(floats, f.stream);
  pass.segment_tiles = DeviceBuffer<unsigned>(places, f.stream);
  check(cudaMemsetAsync(pass.segment_tiles.data(), 0xFF, pass.segment_tiles.bytes(), f.stream), "clearing segments");
}

void draw_ellipses(const Forward& f, const ProjectTarget& to, Unlisted items) {
  const CudaRecords& records = to.records;
  const bool colored = cuda_project(f.data, to, f.stream);
  if (!colored) cuda_colors(f.call(), records, f.stream);
  order(f, GaussianReach{records.records, kRecordQuarters, to.limits}, std::move(items));
  reserve_segments(f);
  cuda_draw(f.call(), records, f.pass.lists, segments_of(f.pass), f.outputs, f.pass.lasts.data(), f.stream);
}

}  // namespace

DeviceTimer cuda_forward(const View* views, int count, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaCallData data(views, count, settings, scene, workspace.staging, stream);
  const Forward f{data, outputs, pass, workspace, timer, stream};
  pass.lists = tile_grid(count, f.call().width, f.call().height);
  check_size(f.items(), f.tiles());
  pass.features = features_of(settings, scene, outputs);
  const auto stride = static_cast<std::size_t>(feature_stride(pass.features));
  pass.records = DeviceBuffer<float4>(f.items() * kRecordQuarters, stream);
  pass.more_features = DeviceBuffer<float>(f.items() * stride, stream);
  pass.lasts = DeviceBuffer<int>(f.pixels(), stream);
  Unlisted items{DeviceBuffer<unsigned>(f.items(), stream), TileCountBuffers(f.items(), stream)};
  const ProjectTarget target{{pass.features, static_cast<int>(stride), pass.records.data(), pass.more_features.data()},
                             outputs,
                             items.keys.data(),
                             items.counts.counts(),
                             {log2_positive(settings.alpha_min), settings.pixel_center}};
  const auto draw = settings.surfels ? draw_surfels : settings.rays ? draw_rays : draw_ellipses;
  draw(f, target, std::move(items));
  timer.mark("blend");
  return timer;
}

}  // namespace lumigrad::gaussians
