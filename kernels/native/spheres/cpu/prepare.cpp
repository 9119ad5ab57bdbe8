// Setup, sort by distance and binning into tiles.
#include "common/cpu/tile_lists.h"
#include "common/cpu/transpose.h"
#include "spheres/cpu/tiles.h"

LG_BEGIN_ENGINE(spheres)
namespace {

constexpr int kChunk = 64;
// The fields of a record before the colours; the last field follows the colours.
constexpr int kFirstFields = exact_record::kColor, kLastField = exact_record::kScale;
static_assert(static_cast<int>(exact_record::kColor) == static_cast<int>(compat_record::kColor));

// Inputs and results of a chunk of spheres, by field, so that the loop over them becomes SIMD.
struct Chunk {
  int64_t ids[kChunk];
  alignas(64) float px[kChunk], py[kChunk], pz[kChunk], radius[kChunk], opacity[kChunk];
  alignas(64) float fields[kRecordFloats][kChunk];
  alignas(64) float near[kChunk], area[kChunk];
  alignas(64) int visible[kChunk], across[kChunk], down[kChunk], tiles[kChunk];
};

int tiles_across(const Camera& camera) { return (camera.width + kTileWidth - 1) / kTileWidth; }

// The tiles that a sphere overlaps: the first tile, and whether it reaches into the next column, the next row, or
// farther.
enum TileBits { kRight = 1, kBelow = 2, kFarther = 4, kTileShift = 3 };

LG_INLINE int tiles_of(const PixelRectangle& r, int tiles_x) {
  const int x0 = r.x0 / kTileWidth, x1 = (r.x1 - 1) >> kTileWidthBits;
  const int y0 = r.y0 / kTileHeight, y1 = (r.y1 - 1) >> kTileHeightBits;
  const int right = x1 > x0 ? kRight : 0, below = y1 > y0 ? kBelow : 0;
  const int farther = (x1 - x0 > 1) | (y1 - y0 > 1) ? kFarther : 0;
  return (y0 * tiles_x + x0) << kTileShift | right | below | farther;
}

template <bool kExact, bool kOrthogonal>
__attribute__((noinline)) void setup_chunk(const Camera& camera, const Settings& settings, int tiles_x, Chunk& k) {
#pragma GCC ivdep
  for (int i = 0; i < kChunk; ++i) {
    SetupResult s;
    if constexpr (kExact) {
      s = exact_setup(camera, settings, kOrthogonal, k.px[i], k.py[i], k.pz[i], k.radius[i], k.opacity[i]);
    } else {
      s = compat_setup(camera, kOrthogonal, k.px[i], k.py[i], k.pz[i], k.radius[i], k.opacity[i]);
    }
    for (int f = 0; f < kFirstFields; ++f) k.fields[f][i] = s.record[f];
    k.fields[kLastField][i] = s.record[kLastField];
    k.near[i] = s.near;
    k.visible[i] = s.visible;
    if constexpr (!kExact) k.area[i] = s.wide ? s.area : -s.area;
    k.across[i] = s.candidates.x0 | s.candidates.x1 << 16;
    k.down[i] = s.candidates.y0 | s.candidates.y1 << 16;
    k.tiles[i] = tiles_of(s.candidates, tiles_x);
  }
}

struct SetupTarget {
  float* records;
  PixelRectangle* rectangles;
  float* area;
  int32_t* tiles;
  uint64_t* pairs;
};

LG_INLINE void gather_one(const Scene& scene, int64_t id, int i, Chunk& k) {
  k.px[i] = scene.positions[3 * id];
  k.py[i] = scene.positions[3 * id + 1];
  k.pz[i] = scene.positions[3 * id + 2];
  k.radius[i] = scene.radii[id];
  k.opacity[i] = scene.opacities != nullptr ? scene.opacities[id] : 1.0f;
  for (int c = 0; c < 3; ++c) k.fields[kFirstFields + c][i] = scene.channels == 3 ? scene.colors[3 * id + c] : 0.0f;
}

// Gathers sixteen consecutive spheres.
LG_INLINE void gather_pack(const Scene& scene, int64_t id, int i, Chunk& k) {
  const auto put = [i](Pack a, Pack b, Pack c, float* x, float* y, float* z) {
    a.store(x + i);
    b.store(y + i);
    c.store(z + i);
  };
  Pack a, b, c;
  deinterleave_3(scene.positions + 3 * id, a, b, c);
  put(a, b, c, k.px, k.py, k.pz);
  load_unaligned(scene.radii + id).store(k.radius + i);
  (scene.opacities != nullptr ? load_unaligned(scene.opacities + id) : Pack(1.0f)).store(k.opacity + i);
  if (scene.channels == 3) {
    deinterleave_3(scene.colors + 3 * id, a, b, c);
  } else {
    a = b = c = Pack(0.0f);
  }
  put(a, b, c, k.fields[kFirstFields], k.fields[kFirstFields + 1], k.fields[kFirstFields + 2]);
}

// Fills a chunk whose first `count` sphere numbers are given; the rest repeats the last sphere.
void gather(const Scene& scene, int count, Chunk& k) {
  if (count == kChunk && k.ids[kChunk - 1] - k.ids[0] == kChunk - 1) {
    for (int i = 0; i < kChunk; i += kLanes) gather_pack(scene, k.ids[i], i, k);
    return;
  }
  for (int i = 0; i < kChunk; ++i) gather_one(scene, k.ids[i < count ? i : count - 1], i, k);
}

LG_INLINE Pack load_int_bits(const int* from) { return from_bits(IntPack::load(from)); }

// Writes the results of the first `used` of sixteen spheres of a chunk, including spheres that are not visible, whose
// rectangles are empty.
template <bool kExact>
LG_INLINE void scatter_pack(const Chunk& k, int i, int used, const SetupTarget& to) {
  Pack rows[kLanes];
#pragma GCC unroll 16
  for (int f = 0; f < kRecordFloats; ++f) rows[f] = Pack::load(k.fields[f] + i);
  transpose_16(rows);
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lane < used) rows[lane].store(to.records + k.ids[i + lane] * kRecordFloats);
  }
  const int64_t first = k.ids[i];
  if (used == kLanes && k.ids[i + kLanes - 1] - first == kLanes - 1) {
    interleave_2(load_int_bits(k.across + i), load_int_bits(k.down + i),
                 reinterpret_cast<float*>(to.rectangles + first));
    store_unaligned(load_int_bits(k.tiles + i), reinterpret_cast<float*>(to.tiles + first));
    if constexpr (!kExact) store_unaligned(Pack::load(k.area + i), to.area + first);
    return;
  }
  for (int lane = 0; lane < used; ++lane) {
    const int64_t id = k.ids[i + lane];
    __builtin_memcpy(&to.rectangles[id].x0, k.across + i + lane, sizeof(float));
    __builtin_memcpy(&to.rectangles[id].y0, k.down + i + lane, sizeof(float));
    __builtin_memcpy(to.tiles + id, k.tiles + i + lane, sizeof(float));
    if constexpr (!kExact) to.area[id] = k.area[i + lane];
  }
}

// Writes the results of a chunk of `count` spheres; appends the visible ones to `pairs`, and returns their number.
template <bool kExact>
int scatter(int count, const Chunk& k, const SetupTarget& to, uint64_t* pairs) {
  for (int i = 0; i < count; i += kLanes) scatter_pack<kExact>(k, i, count - i < kLanes ? count - i : kLanes, to);
  int visible = 0;
  for (int i = 0; i < count; ++i) {
    pairs[visible] =
        static_cast<uint64_t>(static_cast<uint32_t>(bits(k.near[i]))) << 32 | static_cast<uint32_t>(k.ids[i]);
    visible += k.visible[i];
  }
  return visible;
}

template <bool kExact, bool kOrthogonal>
void setup(const Camera& camera, const Settings& settings, const Scene& scene, const int32_t* only,
           const SetupTarget& to, Segments& segments) {
  const int64_t n = scene.count;
  const int tiles_x = tiles_across(camera);
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
      setup_chunk<kExact, kOrthogonal>(camera, settings, tiles_x, chunk);
      visible += scatter<kExact>(count, chunk, to, to.pairs + begin + visible);
    }
    segments.begin[p] = begin;
    segments.length[p] = visible;
  });
}

// Visits the tiles of a sphere, up to four of them without a branch: spheres are small and unordered on the film, so
// that a loop over their tiles would mispredict for each. Visits beyond the sphere's tiles go to tiles that do not
// exist. Returns the number of further tiles.
template <class Visit>
LG_INLINE int each_tile(uint32_t tiles, const PixelRectangle& r, int tiles_x, int none, Visit&& visit) {
  const int first = static_cast<int>(tiles >> kTileShift);
  if (__builtin_expect((tiles & kFarther) == 0, 1)) {
    const bool right = tiles & kRight, below = tiles & kBelow;
    visit(first);
    visit(right ? first + 1 : none);
    visit(below ? first + tiles_x : none + 1);
    visit(right & below ? first + tiles_x + 1 : none + 2);
    return 0;
  }
  const int across = ((r.x1 - 1) >> kTileWidthBits) - r.x0 / kTileWidth;
  const int down = ((r.y1 - 1) >> kTileHeightBits) - r.y0 / kTileHeight;
  for (int y = 0; y <= down; ++y) {
    for (int x = 0; x <= across; ++x) visit(first + y * tiles_x + x);
  }
  return (across + 1) * (down + 1);
}

// Lists the spheres in the segments by tile, keeping their order. In `pairs`, tiles take the place of the keys.
void bin(uint64_t* pairs, const int32_t* tiles_of, const Segments& segments, Prepared& prepared, Workspace& w) {
  const int tiles = prepared.tiles_x * prepared.tiles_y;
  const auto each_sphere = [&](int p, const auto& visit, bool counting) {
    constexpr int kAhead = 16;
    const int64_t end = segments.begin[p] + segments.length[p];
    TileWork work;
    for (int64_t i = segments.begin[p]; i < end; ++i) {
      const uint32_t id = static_cast<uint32_t>(pairs[i]);
      if (counting) {
        if (i + kAhead < end) __builtin_prefetch(tiles_of + static_cast<uint32_t>(pairs[i + kAhead]));
        pairs[i] = static_cast<uint64_t>(static_cast<uint32_t>(tiles_of[id])) << 32 | id;
      }
      const int more = each_tile(static_cast<uint32_t>(pairs[i] >> 32), prepared.rectangles[id], prepared.tiles_x,
                                 tiles, [&](int tile) { visit(tile, id); });
      if (__builtin_expect(more > 0, 0) && work.stops_after(more)) return;
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
                       w.area.ensure<float>(n), w.tiles.ensure<int32_t>(n), w.pairs.ensure<uint64_t>(n)};
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
  prepared.tiles_x = tiles_across(camera);
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
  uint64_t* pairs = sort_by_key(to.pairs, scene.count, segments, w.pairs_swap, w.histogram);
  clock.stage(kSortStage);
  Prepared prepared = prepared_before(camera, scene, w);
  bin(pairs, to.tiles, segments, prepared, w);
  w.prepared = next_prepared();
  clock.stage(kBinStage);
  return prepared;
}

LG_END
