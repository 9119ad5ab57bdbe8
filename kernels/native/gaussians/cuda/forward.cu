// The forward pass on the device: find the Gaussians that reach pixels, project them, sort them by depth, list the
// Gaussians of each tile, blend.
#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "common/room.h"
#include "gaussians/cuda/rays/field.cuh"
#include "gaussians/cuda/rays/stages.h"
#include "gaussians/cuda/reach.cuh"
#include "gaussians/cuda/surfels/stages.h"

namespace lumigrad::gaussians {
namespace {

// The state that the stages of a call share.
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

// Arrays of the items that are needed until the items of each tile are listed.
struct Unlisted {
  DeviceBuffer<unsigned long long> totals;  // The numbers of pairs and of places.
  DeviceBuffer<unsigned> keys, tiles;       // [places]
  std::optional<std::size_t> pairs;         // The number of pairs, if the host knows it.
};

// Items and tiles are numbered in 32 bits.
void check_size(std::size_t items, std::size_t tiles) {
  constexpr std::size_t kMost = 0x7FFFFFFF;
  if (items <= kMost && tiles <= kMost) return;
  throw DeviceMemoryError("views times Gaussians and tiles of all views must stay below 2^31, but there are " +
                          std::to_string(items) + " and " + std::to_string(tiles) + "; render fewer views at a time");
}

// The pairs to allocate memory for without knowing their number; 0 if the host must wait for it.
std::size_t room_for(const Forward& f) {
  if (!f.workspace.capacities || f.call().settings.deterministic) return 0;
  // Memory for more pairs is allocated only once their number is known.
  constexpr std::size_t kMost = std::size_t{1} << 28;
  return f.workspace.capacities->room_for(f.kind(), pairs_within_room(std::min(f.workspace.pair_limit, kMost)));
}

// Allocates the places.
void make_room(const Forward& f, std::size_t places, ProjectTarget& to, Unlisted& items) {
  CudaPass& pass = f.pass;
  pass.items = DeviceBuffer<unsigned>(places, f.stream);
  pass.records = DeviceBuffer<float4>(places * kRecordQuarters, f.stream);
  pass.more_features = DeviceBuffer<float>(places * feature_stride(pass.features), f.stream);
  items.keys = DeviceBuffer<unsigned>(places, f.stream);
  items.tiles = DeviceBuffer<unsigned>(places, f.stream);
  to.records = records_of(pass);
  to.keys = items.keys.data();
}

// Finds the Gaussians that reach pixels with project(target), and allocates places: for their number, if the host waits
// for it, otherwise for all Gaussians. Returns the target of the second project(target).
template <class Project>
ProjectTarget find_places(const Forward& f, Unlisted& items, const Project& project) {
  CudaPass& pass = f.pass;
  const Settings& settings = f.call().settings;
  const std::size_t warps = warps_of(f.call());
  pass.before = DeviceBuffer<unsigned>(warps, f.stream);
  pass.lanes = DeviceBuffer<uint2>(warps, f.stream);
  items.totals = DeviceBuffer<unsigned long long>(2, f.stream);
  check(cudaMemsetAsync(items.totals.data(), 0, items.totals.bytes(), f.stream), "clearing counts");
  ProjectTarget to{records_of(pass), f.outputs, items.totals.data() + 1,
                   nullptr,          {},        {log2_positive(settings.alpha_min), settings.pixel_center}};
  // Tiles along rays are counted later.
  if (!settings.rays) to.counts.pairs = items.totals.data();
  project(to);
  exclusive_sum(pass.before.data(), pass.before.data(), static_cast<int>(warps), f.stream);
  if (room_for(f) > 0) {
    make_room(f, f.items(), to, items);
    check(cudaMemsetAsync(items.keys.data(), 0xFF, items.keys.bytes(), f.stream), "clearing keys");
    check(cudaMemsetAsync(items.tiles.data(), 0, items.tiles.bytes(), f.stream), "clearing counts");
  } else {
    f.workspace.pairs.copy(items.totals.data(), 2, f.stream);
    if (!settings.rays) items.pairs = f.workspace.pairs.wait();
    make_room(f, f.workspace.pairs.wait(1), to, items);
  }
  to.drawn = nullptr;
  to.counts = {};
  if (!settings.rays) to.counts.of_items = items.tiles.data();
  return to;
}

// Undoes a listing that ran out of memory.
void drop_lists(CudaPass& pass) {
  pass.lists.counted = nullptr;
  pass.lists.pairs = 0;
  pass.tiles.entries = {};
  pass.tiles.tile_starts = {};
}

// Waits for the number of pairs, and lists the tiles' Gaussians unless there are too many.
template <class Reach>
void list(const Forward& f, const Reach& reach, const Unlisted& items) {
  const std::size_t pairs = items.pairs ? *items.pairs : f.workspace.pairs.wait();
  const std::size_t limit = pairs_within_room(f.workspace.pair_limit);
  if (f.workspace.capacities) f.workspace.capacities->note(f.kind(), pairs);
  const bool needs_lists = f.call().settings.deterministic;
  if (pairs <= limit) {
    try {
      return list_tiles<Entry::item>(reach, items.tiles, pairs, f.pass.lists, f.pass.tiles, f.stream);
    } catch (const DeviceMemoryError&) {
      drop_lists(f.pass);
      // A worker then frees memory that it can do without, and repeats the call.
      if (needs_lists || memory_room() != nullptr) throw;
    }
  }
  // Without lists there are no rows per pair, which deterministic sums need.
  if (!needs_lists) return leave_unlisted(f.pass.lists, f.pass.tiles, f.stream);
  throw DeviceMemoryError(std::to_string(pairs) + " pairs of tiles and Gaussians, each with a row of gradients, are" +
                          " more than the " + std::to_string(limit) + " that deterministic sums may have");
}

// Lists the tiles' Gaussians without waiting for the number of pairs, with memory for `room` pairs. Returns whether
// there was enough memory; if not, queues the copy of the number to the host, since fewer pairs may fit.
template <class Reach>
bool list_within(const Forward& f, const Reach& reach, Unlisted& items, std::size_t room) {
  f.workspace.capacities->copy(f.kind(), items.totals.data(), f.stream);
  f.pass.lists.counted = items.totals.data();
  try {
    list_tiles<Entry::item>(reach, items.tiles, room, f.pass.lists, f.pass.tiles, f.stream);
  } catch (const DeviceMemoryError&) {
    drop_lists(f.pass);
    f.workspace.pairs.copy(items.totals.data(), 1, f.stream);
    return false;
  }
  // The counts live as long as the lists.
  f.pass.tiles.counted = std::move(items.totals);
  return true;
}

// Sorts items by depth and lists the items of each tile.
template <class Reach>
void order(const Forward& f, const Reach& reach, Unlisted items) {
  const std::size_t room = items.pairs ? 0 : room_for(f);
  if (room == 0 && !items.pairs) f.workspace.pairs.copy(items.totals.data(), 1, f.stream);
  f.timer.mark("project");
  sort_by_depth(items.keys, f.pass.items.data(), f.call().scene.count, f.pass.lists, f.pass.tiles, f.stream);
  f.timer.mark("sort");
  if (room == 0 || !list_within(f, reach, items, room)) list(f, reach, items);
  f.timer.mark("bin");
}

GaussianReach reach_of(const Forward& f, const ProjectTarget& to, const float4* ellipses, int quarters) {
  return {ellipses, quarters, to.limits, to.records.places.items, static_cast<unsigned>(f.call().scene.count)};
}

void draw_surfels(const Forward& f) {
  CudaPass& pass = f.pass;
  Unlisted items;
  const ProjectTarget to = find_places(
      f, items, [&](const ProjectTarget& target) { cuda_project_surfels(f.call(), target, nullptr, f.stream); });
  const DeviceBuffer<float4> ellipses(pass.items.size() * kEllipseQuarters, f.stream);
  pass.medians = DeviceBuffer<int>(pass.features.median_depth ? f.pixels() : 0, f.stream);
  cuda_project_surfels(f.call(), to, ellipses.data(), f.stream);
  cuda_colors(f.call(), to.records, f.stream);
  order(f, reach_of(f, to, ellipses.data(), kEllipseQuarters), std::move(items));
  cuda_draw_surfels(f.call(), to.records, pass.lists, f.outputs, pass.lasts.data(), pass.medians.data(), f.stream);
}

void draw_rays(const Forward& f) {
  CudaPass& pass = f.pass;
  Unlisted items;
  ProjectTarget to =
      find_places(f, items, [&](const ProjectTarget& target) { cuda_project(f.data, target, f.stream); });
  cuda_project(f.data, to, f.stream);
  to.counts = {items.tiles.data(), items.totals.data()};
  pass.rays = DeviceBuffer<float>(f.tiles() * kTilePixels * kRayFloats, f.stream);
  const DeviceBuffer<unsigned long long> masks(pass.items.size(), f.stream);
  cuda_rays(f.data, pass.lists, to, pass.rays.data(), masks.data(), f.stream);
  cuda_colors(f.call(), to.records, f.stream);
  order(f, RayReach{to.records, masks.data(), static_cast<unsigned>(f.call().scene.count)}, std::move(items));
  cuda_draw_rays(f.call(), to.records, pass.lists, pass.rays.data(), f.outputs, pass.lasts.data(), f.stream);
}

// Allocates the segments of lists, if a backward pass may use them. Without memory for segments the backward pass goes
// through whole lists.
void reserve_segments(const Forward& f) {
  CudaPass& pass = f.pass;
  const int features = pass.features.total();
  if (!pass.differentiable || pass.lists.entries == nullptr || features > kInlineFeatures) return;
  const std::size_t places = pass.lists.pairs / kSegment + 1, floats = places * kTilePixels * (1 + features);
  const MemoryRoom* room = memory_room();
  const std::size_t bytes = floats * sizeof(float) + places * sizeof(unsigned);
  if (pass.lists.pairs <= kSegment || (room != nullptr && room->left() < static_cast<std::int64_t>(bytes))) return;
  try {
    pass.segments = DeviceBuffer<float>(floats, f.stream);
    pass.segment_tiles = DeviceBuffer<unsigned>(places, f.stream);
  } catch (const std::bad_alloc&) {
    // Blocks may be larger than requested, and so may still exceed the room.
    pass.segments = {};
    return;
  }
  check(cudaMemsetAsync(pass.segment_tiles.data(), 0xFF, pass.segment_tiles.bytes(), f.stream), "clearing segments");
}

void draw_ellipses(const Forward& f) {
  Unlisted items;
  const ProjectTarget to =
      find_places(f, items, [&](const ProjectTarget& target) { cuda_project(f.data, target, f.stream); });
  const CudaRecords& records = to.records;
  const bool colored = cuda_project(f.data, to, f.stream);
  if (!colored) cuda_colors(f.call(), records, f.stream);
  order(f, reach_of(f, to, records.records, kRecordQuarters), std::move(items));
  reserve_segments(f);
  cuda_draw(f.call(), records, f.pass.lists, segments_of(f.pass), f.outputs, f.pass.lasts.data(), f.stream);
}

}  // namespace

DeviceTimer cuda_forward(const View* views, int count, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaCallData data(views, count, settings, scene, workspace, stream);
  const Forward f{data, outputs, pass, workspace, timer, stream};
  pass.lists = tile_grid(count, f.call().width, f.call().height);
  check_size(f.items(), f.tiles());
  pass.features = features_of(settings, scene, outputs);
  pass.lasts = DeviceBuffer<int>(f.pixels(), stream);
  const auto draw = settings.surfels ? draw_surfels : settings.rays ? draw_rays : draw_ellipses;
  draw(f);
  timer.mark("blend");
  return timer;
}

}  // namespace lumigrad::gaussians
