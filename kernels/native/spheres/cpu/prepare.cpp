// Setup, sort by distance and binning into tiles.
#include "common/cpu/tile_lists.h"
#include "spheres/cpu/tiles.h"

LG_BEGIN_ENGINE(spheres)
namespace {

constexpr int kChunk = 64;
// The fields of a record but for the colours; the last one lies behind them.
constexpr int kScaleField = exact_record::kColor;

// Results of a chunk of spheres, by field, so that the loop over them becomes SIMD.
struct Chunk {
  alignas(64) float fields[kScaleField + 1][kChunk];
  alignas(64) float near[kChunk], area[kChunk];
  alignas(64) int visible[kChunk];
  alignas(64) int x0[kChunk], x1[kChunk], y0[kChunk], y1[kChunk];
  int64_t ids[kChunk];
  alignas(64) float px[kChunk], py[kChunk], pz[kChunk], radius[kChunk], opacity[kChunk];
};

template <bool kExact, bool kOrthogonal>
__attribute__((noinline)) void setup_chunk(const Camera& camera, const Settings& settings, Chunk& k) {
#pragma GCC ivdep
  for (int i = 0; i < kChunk; ++i) {
    SetupResult s;
    if constexpr (kExact) {
      s = exact_setup(camera, settings, kOrthogonal, k.px[i], k.py[i], k.pz[i], k.radius[i], k.opacity[i]);
    } else {
      s = compat_setup(camera, kOrthogonal, k.px[i], k.py[i], k.pz[i], k.radius[i], k.opacity[i]);
    }
    for (int f = 0; f < kScaleField; ++f) k.fields[f][i] = s.record[f];
    k.fields[kScaleField][i] = s.record[exact_record::kScale];
    k.near[i] = s.near;
    k.visible[i] = s.visible;
    k.area[i] = s.wide ? s.area : -s.area;
    k.x0[i] = s.candidates.x0;
    k.x1[i] = s.candidates.x1;
    k.y0[i] = s.candidates.y0;
    k.y1[i] = s.candidates.y1;
  }
}

struct SetupTarget {
  float* records;
  PixelRectangle* rectangles;
  float* area;
  uint64_t* pairs;
};

void gather(const Scene& scene, int count, Chunk& k) {
  for (int i = 0; i < kChunk; ++i) {
    const int64_t id = k.ids[i < count ? i : count - 1];
    k.px[i] = scene.positions[3 * id];
    k.py[i] = scene.positions[3 * id + 1];
    k.pz[i] = scene.positions[3 * id + 2];
    k.radius[i] = scene.radii[id];
    k.opacity[i] = scene.opacities != nullptr ? scene.opacities[id] : 1.0f;
  }
}

// Writes out a chunk of `count` spheres; appends the visible ones to `pairs`, returns how many.
int scatter(const Scene& scene, int count, const Chunk& k, const SetupTarget& to, uint64_t* pairs) {
  static_assert(static_cast<int>(exact_record::kColor) == static_cast<int>(compat_record::kColor));
  int visible = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t id = k.ids[i];
    to.area[id] = k.area[i];
    to.rectangles[id] = {0, 0, 0, 0};
    if (!k.visible[i]) continue;
    float* record = to.records + id * kRecordFloats;
    for (int f = 0; f < kScaleField; ++f) record[f] = k.fields[f][i];
    if (scene.channels == 3) {
      for (int c = 0; c < 3; ++c) record[exact_record::kColor + c] = scene.colors[3 * id + c];
    }
    record[exact_record::kScale] = k.fields[kScaleField][i];
    to.rectangles[id] = {static_cast<uint16_t>(k.x0[i]), static_cast<uint16_t>(k.x1[i]), static_cast<uint16_t>(k.y0[i]),
                         static_cast<uint16_t>(k.y1[i])};
    pairs[visible++] = static_cast<uint64_t>(static_cast<uint32_t>(bits(k.near[i]))) << 32 | static_cast<uint32_t>(id);
  }
  return visible;
}

template <bool kExact, bool kOrthogonal>
void setup(const Camera& camera, const Settings& settings, const Scene& scene, const int32_t* only,
           const SetupTarget& to, Segments& segments) {
  const int64_t n = scene.count;
  segments.parts = parts_of(n);
  for_parts(segments.parts, [&](int p) {
    Chunk chunk;
    const int64_t begin = n * p / segments.parts, end = n * (p + 1) / segments.parts;
    int64_t visible = 0;
    for (int64_t i = begin; i < end;) {
      int count = 0;
      for (; i < end && count < kChunk; ++i) {
        chunk.ids[count] = i;
        if (only == nullptr || only[i] != 0) {
          ++count;
        } else {
          to.rectangles[i] = {0, 0, 0, 0};
        }
      }
      if (count == 0) break;
      gather(scene, count, chunk);
      setup_chunk<kExact, kOrthogonal>(camera, settings, chunk);
      visible += scatter(scene, count, chunk, to, to.pairs + begin + visible);
    }
    segments.begin[p] = begin;
    segments.length[p] = visible;
  });
}

// Tiles that a sphere reaches, at most four of them without a branch: spheres are small and in no order on the film,
// so that a loop over their tiles would mispredict at each. What is not there goes to a tile that does not exist.
template <class Visit>
LG_INLINE void each_tile(const PixelRectangle& r, int tiles_x, int none, Visit&& visit) {
  const int x0 = r.x0 / kTileWidth, x1 = (r.x1 - 1) / kTileWidth;
  const int y0 = r.y0 / kTileHeight, y1 = (r.y1 - 1) / kTileHeight;
  const int first = y0 * tiles_x + x0;
  if (__builtin_expect((x1 - x0 <= 1) & (y1 - y0 <= 1), 1)) {
    const bool right = x1 > x0, below = y1 > y0;
    visit(first);
    visit(right ? first + 1 : none);
    visit(below ? first + tiles_x : none);
    visit(right & below ? first + tiles_x + 1 : none);
    return;
  }
  for (int y = y0; y <= y1; ++y) {
    for (int x = x0; x <= x1; ++x) visit(y * tiles_x + x);
  }
}

// Lists by tile of the spheres in the segments, keeping their order.
void bin(const uint64_t* pairs, const Segments& segments, Prepared& prepared, Workspace& w) {
  const int tiles = prepared.tiles_x * prepared.tiles_y;
  const auto each_sphere = [&](int p, const auto& visit, bool) {
    constexpr int kAhead = 16;
    const int64_t end = segments.begin[p] + segments.length[p];
    for (int64_t i = segments.begin[p]; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(prepared.rectangles + static_cast<uint32_t>(pairs[i + kAhead]));
      const uint32_t id = static_cast<uint32_t>(pairs[i]);
      each_tile(prepared.rectangles[id], prepared.tiles_x, tiles, [&](int tile) { visit(tile, id); });
    }
  };
  const TileLists lists =
      fill_tile_lists(tiles, segments.parts, w.tile_counts, w.tile_starts, w.tile_entries, each_sphere);
  prepared.tile_starts = lists.starts;
  prepared.entries = lists.entries;
}

SetupTarget set_up(const Camera& camera, const Settings& settings, const Scene& scene, const int32_t* only,
                   Workspace& w, Segments& segments) {
  w.prepared = 0;
  const std::size_t n = static_cast<std::size_t>(scene.count);
  const SetupTarget to{w.records.ensure<float>(n * kRecordFloats), w.rectangles.ensure<PixelRectangle>(n),
                       w.area.ensure<float>(n), w.pairs.ensure<uint64_t>(n)};
  if (settings.exact) {
    camera.orthogonal ? setup<true, true>(camera, settings, scene, only, to, segments)
                      : setup<true, false>(camera, settings, scene, only, to, segments);
  } else {
    camera.orthogonal ? setup<false, true>(camera, settings, scene, only, to, segments)
                      : setup<false, false>(camera, settings, scene, only, to, segments);
  }
  return to;
}

}  // namespace

void set_up_only(const Camera& camera, const Settings& settings, const Scene& scene, const int32_t* only,
                 Workspace& w) {
  Segments segments;
  set_up(camera, settings, scene, only, w, segments);
}

Prepared prepared_before(const Camera& camera, const Scene& scene, Workspace& w) {
  const std::size_t n = static_cast<std::size_t>(scene.count);
  Prepared prepared;
  prepared.tiles_x = (camera.width + kTileWidth - 1) / kTileWidth;
  prepared.tiles_y = (camera.height + kTileHeight - 1) / kTileHeight;
  prepared.records = w.records.ensure<float>(n * kRecordFloats);
  prepared.rectangles = w.rectangles.ensure<PixelRectangle>(n);
  prepared.area = w.area.ensure<float>(n);
  prepared.tile_starts =
      w.tile_starts.ensure<uint32_t>(static_cast<std::size_t>(prepared.tiles_x) * prepared.tiles_y + 1);
  prepared.entries = w.tile_entries.ensure<uint32_t>(1);
  return prepared;
}

Prepared prepare(const Camera& camera, const Settings& settings, const Scene& scene, Workspace& w, StageClock& clock) {
  Segments segments;
  const SetupTarget to = set_up(camera, settings, scene, nullptr, w, segments);
  clock.stage(kSetupStage);
  const uint64_t* pairs = sort_by_key(to.pairs, scene.count, segments, w.pairs_swap, w.histogram);
  clock.stage(kSortStage);
  Prepared prepared = prepared_before(camera, scene, w);
  bin(pairs, segments, prepared, w);
  w.prepared = next_prepared();
  clock.stage(kBinStage);
  return prepared;
}

LG_END
