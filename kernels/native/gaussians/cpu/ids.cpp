// Finds the Gaussian with the largest weight in each pixel: goes through the tiles' lists once more, and evaluates the
// Gaussians of the blocks in which they were drawn, as the blending did.
#include <algorithm>
#include <atomic>

#include "gaussians/cpu/ids.h"
#include "gaussians/cpu/images.h"
#include "gaussians/cpu/rays/field.h"
#include "gaussians/cpu/tile.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct Search {
  const View& view;
  int number;
  const Settings& settings;
  const ViewData& data;
  const RayField* rays;
  int32_t* ids;
};

// Sixteen pixels: block `number` of a tile, whose first pixel is (x, y).
struct Block {
  int tile, number, x, y;
};

// log2 of alpha at a block's pixels; far below any limit where there is none. Each must evaluate the very same
// expression as the blending.
struct EllipseResponse {
  static LG_INLINE Pack log2_alpha_at(const Search& s, const float* record, const Block& b) {
    const Ellipse<Pack> e = ellipse_of<Pack>(record);
    const Pack x = lane_x() + Pack(static_cast<float>(b.x) + s.settings.pixel_center);
    const Pack y = lane_y() + Pack(static_cast<float>(b.y) + s.settings.pixel_center);
    return log2_alpha(e, e.x - x, e.y - y);
  }
};

struct SurfelResponse {
  static LG_INLINE Pack log2_alpha_at(const Search& s, const float* record, const Block& b) {
    const Pack x = lane_x() + Pack(static_cast<float>(b.x) + s.settings.pixel_center);
    const Pack y = lane_y() + Pack(static_cast<float>(b.y) + s.settings.pixel_center);
    const SurfelPixel<Pack> at = surfel_at(record, x, y);
    return select(at.exists, at.power, Pack(-kNowhere));
  }
};

template <bool kOneOrigin>
struct RayResponse {
  static LG_INLINE Pack log2_alpha_at(const Search& s, const float* record, const Block& b) {
    const float* rays = s.rays->block(b.tile, b.number);
    const auto triple = [&](int k) {
      return Triple<Pack>{Pack::load(rays + k * kLanes), Pack::load(rays + (k + 1) * kLanes),
                          Pack::load(rays + (k + 2) * kLanes)};
    };
    UnitRay<Pack> seen = {triple(0), triple(0)};
    if constexpr (!kOneOrigin) {
      const SliceMotion<float>* motion = motion_of(*s.rays, record);
      seen.origin = triple(3);
      if (motion != nullptr) seen = unmoved_block(*motion, s.rays->times.block(b.x, b.y), rays);
    }
    const Closest<Pack> at = closest_of(unit_ray<kOneOrigin>(record, seen.origin, seen.direction));
    const Pack power = log2_alpha(at, record[ray_record::kLog2Opacity]);
    return select(at.back <= Pack(0.0f), power, Pack(-kNowhere));
  }
};

// What is known of a block between visits. `limit` is log2 of the smallest alpha that counts, and beyond any where a
// pixel has ended or sees no ray.
struct Found {
  Pack limit, transmittance, weight;
  int32_t ids[kLanes];

  void clear(const Search& s, const Block& b, float log2_alpha_min) {
    limit = Pack(log2_alpha_min);
    if (s.rays != nullptr) {
      const float* d = s.rays->block(b.tile, b.number);
      const Triple<Pack> direction = {Pack::load(d), Pack::load(d + kLanes), Pack::load(d + 2 * kLanes)};
      limit = select(dot(direction, direction) > Pack(0.5f), limit, Pack(kNowhere));
    }
    transmittance = Pack(1.0f);
    weight = Pack(0.0f);
    std::fill(ids, ids + kLanes, -1);
  }

  LG_INLINE void visit(const Settings& settings, Pack power, uint32_t id) {
    const Pack least = Pack(settings.transmittance_min);
    Pack alpha = zero_unless(power >= limit, min(exp2_bounded(power), Pack(settings.alpha_max)));
    Pack after = fnma(alpha, transmittance, transmittance);
    const MaskPack ends = settings.inria != 0 ? after < least : after <= least;
    if (__builtin_expect(any(ends), 0)) {
      limit = select(ends, Pack(kNowhere), limit);
      alpha = zero_unless(~ends, alpha);
      after = fnma(alpha, transmittance, transmittance);
    }
    const Pack own = alpha * transmittance;
    each_lane(own > weight, [&](int lane) { ids[lane] = static_cast<int32_t>(id); });
    weight = max(weight, own);
    transmittance = after;
  }
};

template <class Response>
void search_tile(const Search& s, int tile, Found* found) {
  const ViewData& data = s.data;
  const int left = tile % data.tiles_x * kTileWidth, top = tile / data.tiles_x * kTileHeight;
  const auto block = [&](int b) { return Block{tile, b, left + block_left(b), top + block_top(b)}; };
  for (int b = 0; b < kBlocks; ++b) found[b].clear(s, block(b), log2_positive(s.settings.alpha_min));
  const uint32_t end = data.tile_starts[tile + 1];
  constexpr uint32_t kAhead = 8;
  for (uint32_t i = data.tile_starts[tile]; i < end; ++i) {
    // The Gaussians of a tile lie anywhere in memory.
    if (i + kAhead < end) __builtin_prefetch(data.records + int64_t{data.entries[i + kAhead]} * kRecordFloats);
    const uint32_t id = data.entries[i];
    const float* record = data.records + int64_t{id} * kRecordFloats;
    for (uint32_t mask = data.masks[i]; mask != 0; mask &= mask - 1) {
      const int b = __builtin_ctz(mask);
      found[b].visit(s.settings, Response::log2_alpha_at(s, record, block(b)), id);
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    const Block at = block(b);
    if (at.x >= s.view.width || at.y >= s.view.height) continue;
    store_rows(BlockPixels(s.view, s.number, at.x, at.y), found[b].ids, 1, s.ids);
  }
}

using SearchTile = void (*)(const Search&, int, Found*);

SearchTile choose(const Settings& settings, const RayField* rays) {
  if (rays != nullptr) return rays->one_origin ? &search_tile<RayResponse<true>> : &search_tile<RayResponse<false>>;
  return settings.surfels ? &search_tile<SurfelResponse> : &search_tile<EllipseResponse>;
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
  const Search search{views[view], view, settings, data, rays, ids};
  const SearchTile run = choose(settings, rays);
  const int total = data.tiles_x * data.tiles_y, threads = thread_count(), parts = total < threads ? total : threads;
  Found* memory = w.scratch.ensure<Found>(static_cast<std::size_t>(kBlocks) * parts);
  std::atomic<int> next{0};
  for_parts(parts, [&](int p) {
    for (int tile = next++; tile < total; tile = next++) run(search, tile, memory + static_cast<int64_t>(kBlocks) * p);
  });
  clock.stage(kBlendStage);
}

LG_END
