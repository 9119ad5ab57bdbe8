// Finds the Gaussian with the largest weight in each pixel: visits the tiles' lists once more, and evaluates Gaussians
// as the blending did, in the blocks in which they were drawn.
#include "gaussians/cpu/lists/ids.h"

#include <atomic>
#include <cstring>

#include "gaussians/cpu/blend.h"
#include "gaussians/cpu/rays/field.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct Search {
  const View& view;
  int number;
  const Settings& settings;
  const ViewData& data;
  const RayField* rays;
  const uint32_t* numbers;  // Numbers of the Gaussians, by place.
  int32_t* ids;
};

// Sixteen pixels: block `number` of a tile, whose first pixel is (x, y).
struct Block {
  int tile, number, x, y;
};

// log2 of a Gaussian's alpha in a block's pixels, far below any limit where it does not exist. Each view must evaluate
// exactly the same expression as the blending.
struct EllipseView {
  Pack x, y;

  LG_INLINE EllipseView(const Search& s, const Block& b)
      : x(lane_x() + Pack(static_cast<float>(b.x) + s.settings.pixel_center)),
        y(lane_y() + Pack(static_cast<float>(b.y) + s.settings.pixel_center)) {}
  LG_INLINE Pack power(const float* record) const {
    const Ellipse<Pack> e = ellipse_of<Pack>(record);
    return log2_alpha(e, e.x - x, e.y - y);
  }
};

struct SurfelView {
  Pack x, y;

  LG_INLINE SurfelView(const Search& s, const Block& b)
      : x(lane_x() + Pack(static_cast<float>(b.x) + s.settings.pixel_center)),
        y(lane_y() + Pack(static_cast<float>(b.y) + s.settings.pixel_center)) {}
  LG_INLINE Pack power(const float* record) const {
    const SurfelPixel<Pack> at = surfel_at(record, x, y);
    return select(at.exists, at.power, Pack(-kNowhere));
  }
};

LG_INLINE Triple<Pack> load_triple(const float* from) {
  return {Pack::load(from), Pack::load(from + kLanes), Pack::load(from + 2 * kLanes)};
}

template <bool kOneOrigin>
struct RayView {
  const RayField& field;
  const Block& block;
  const float* rays;
  Triple<Pack> direction, origin;

  LG_INLINE RayView(const Search& s, const Block& b)
      : field(*s.rays),
        block(b),
        rays(field.block(b.tile, b.number)),
        direction(load_triple(rays)),
        origin(kOneOrigin ? direction : load_triple(rays + 3 * kLanes)) {}
  LG_INLINE Pack power(const float* record) const {
    UnitRay<Pack> seen = {origin, direction};
    if constexpr (!kOneOrigin) {
      const SliceMotion<float>* motion = motion_of(field, record);
      if (motion != nullptr) seen = unmoved_block(*motion, field.times.block(block.x, block.y), rays);
    }
    const Closest<Pack> at = closest_of(unit_ray<kOneOrigin>(record, seen.origin, seen.direction));
    const Pack power = log2_alpha(at, record[ray_record::kLog2Opacity]);
    return select(at.back <= Pack(0.0f), power, Pack(-kNowhere));
  }
};

// The state of a block between visits: `limit` is log2 of the smallest alpha that counts, unreachable if a pixel has
// ended or has no ray; `id` has the bits of whole numbers.
struct Found {
  Pack limit, transmittance, weight, id;

  void clear(const Search& s, const Block& b, Pack log2_alpha_min) {
    limit = log2_alpha_min;
    if (s.rays != nullptr) {
      const Triple<Pack> direction = load_triple(s.rays->block(b.tile, b.number));
      limit = select(dot(direction, direction) > Pack(0.5f), limit, Pack(kNowhere));
    }
    transmittance = Pack(1.0f);
    weight = Pack(0.0f);
    id = Pack(from_bits(-1));
  }

  LG_INLINE void visit(const DrawLimits& limits, Pack power, uint32_t number) {
    Pack alpha = zero_unless(power >= limit, min(exp2_bounded(power), limits.alpha_max));
    Pack after = fnma(alpha, transmittance, transmittance);
    const MaskPack ends = ended(after, limits);
    if (__builtin_expect(any(ends), 0)) {
      limit = select(ends, Pack(kNowhere), limit);
      alpha = zero_unless(~ends, alpha);
      after = fnma(alpha, transmittance, transmittance);
    }
    const Pack own = alpha * transmittance;
    id = select(own > weight, Pack(from_bits(static_cast<int32_t>(number))), id);
    weight = max(weight, own);
    transmittance = after;
  }
};

// Fetches `count` Gaussians of a tile's list from entry `begin` on, and assigns them to the blocks in which they were
// drawn.
void fill_drawn(Batch& batch, const ViewData& data, uint32_t begin, int count) {
  constexpr int kAhead = 16;
  for (int b = 0; b < kBlocks; ++b) batch.lengths[b] = 0;
  for (int i = 0; i < count; ++i) {
    // The Gaussians of a tile are scattered in memory.
    const uint32_t* entry = data.entries + begin + i;
    if (i + kAhead < count) __builtin_prefetch(data.records + int64_t{entry[kAhead]} * kRecordFloats);
    uint32_t mask = data.masks[begin + i];
    if (mask != 0) Pack::load(data.records + int64_t{*entry} * kRecordFloats).store(batch.records[i]);
    for (; mask != 0; mask &= mask - 1) {
      const int b = __builtin_ctz(mask);
      batch.lists[b][batch.lengths[b]++] = static_cast<uint8_t>(i);
    }
  }
}

template <class Seen>
LG_INLINE void visit_block(const Search& s, const Block& block, const Batch& batch, const uint32_t* entries,
                           const DrawLimits& limits, Found& found) {
  const Seen seen(s, block);
  const uint8_t* list = batch.lists[block.number];
  Found now = found;
  for (int k = 0; k < batch.lengths[block.number]; ++k) {
    now.visit(limits, seen.power(batch.records[list[k]]), s.numbers[entries[list[k]]]);
  }
  found = now;
}

void write_ids(const Search& s, const Block& block, Pack id) {
  if (block.x >= s.view.width || block.y >= s.view.height) return;
  alignas(64) float lanes[kLanes];
  id.store(lanes);
  int32_t whole[kLanes];
  std::memcpy(whole, lanes, sizeof(whole));
  store_rows(BlockPixels(s.view, s.number, block.x, block.y), whole, 1, s.ids);
}

template <class Seen>
void search_tile(const Search& s, int tile, Batch& batch, Found* found) {
  const ViewData& data = s.data;
  const DrawLimits limits = {Pack(log2_positive(s.settings.alpha_min)), Pack(s.settings.alpha_max),
                             Pack(s.settings.transmittance_min), s.settings.inria != 0};
  const int left = tile % data.tiles_x * kTileWidth, top = tile / data.tiles_x * kTileHeight;
  const auto block = [&](int b) { return Block{tile, b, left + block_left(b), top + block_top(b)}; };
  for (int b = 0; b < kBlocks; ++b) found[b].clear(s, block(b), limits.log2_alpha_min);
  const uint32_t end = data.tile_starts[tile + 1];
  for (uint32_t begin = data.tile_starts[tile]; begin < end; begin += kBatch) {
    if (is_stopping()) return;
    fill_drawn(batch, data, begin, static_cast<int>(end - begin < kBatch ? end - begin : kBatch));
    for (int b = 0; b < kBlocks; ++b) {
      if (batch.lengths[b] > 0) visit_block<Seen>(s, block(b), batch, data.entries + begin, limits, found[b]);
    }
  }
  for (int b = 0; b < kBlocks; ++b) write_ids(s, block(b), found[b].id);
}

using SearchTile = void (*)(const Search&, int, Batch&, Found*);

SearchTile choose(const Settings& settings, const RayField* rays) {
  if (rays != nullptr) return rays->one_origin ? &search_tile<RayView<true>> : &search_tile<RayView<false>>;
  return settings.surfels ? &search_tile<SurfelView> : &search_tile<EllipseView>;
}

}  // namespace

void find_ids(const View* views, int view, const Settings& settings, const Scene& scene, int32_t* ids, Pass& pass,
              Workspace& w) {
  StageClock clock(w.milliseconds);
  ViewState& state = pass.view(view);
  const ViewData data = view_data(state, scene.count);
  RayField field{};
  if (settings.rays) field = ray_field(state, scene, views[view], view);
  const RayField* rays = settings.rays ? &field : nullptr;
  const uint32_t* numbers = numbers_of(data, scene.count, w.pairs);
  const Search search{views[view], view, settings, data, rays, numbers, ids};
  const SearchTile run = choose(settings, rays);
  const int total = data.tiles_x * data.tiles_y, threads = thread_count(), parts = total < threads ? total : threads;
  struct Memory {
    Batch batch;
    Found found[kBlocks];
  };
  Memory* memory = w.scratch.ensure<Memory>(static_cast<std::size_t>(parts));
  std::atomic<int> next{0};
  for_parts(parts, [&](int p) {
    for (int tile = next++; tile < total && !is_stopping(); tile = next++) {
      run(search, tile, memory[p].batch, memory[p].found);
    }
  });
  clock.stage(kBlendStage);
}

LG_END
