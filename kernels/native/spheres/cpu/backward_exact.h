// The backward pass of exact: the pairs of a tile's spheres and pixels, sphere by sphere.
#pragma once

#include "spheres/cpu/finish.h"
#include "spheres/cpu/pixels.h"

LG_BEGIN_ENGINE(spheres)

struct PairArguments {
  const Camera& camera;
  const Settings& settings;
  const Scene& scene;
  const Upstream& up;
  const Prepared& prepared;
  const Rows& rows;
  ExactView view;

  LG_INLINE void prefetch(uint32_t id) const {
    __builtin_prefetch(prepared.records + static_cast<int64_t>(id) * kRecordFloats);
    __builtin_prefetch(prepared.rectangles + id);
    __builtin_prefetch(rows.rows + static_cast<std::size_t>(id) * rows.width, 1);
    if (!rows.counted) __builtin_prefetch(rows.touched + id, 1);
  }
};

// Spheres to prefetch ahead: enough for memory to answer; more would displace the pixels from the first-level cache.
constexpr uint32_t kPrefetch = 8;
// Entries to prefetch ahead. Lists are read in order, but among so many other reads that the processor does not see it.
constexpr uint32_t kPrefetchEntries = 128;

// (sum of G * c - sum of G * I) / D.
template <int kChannels>
LG_INLINE Pack upstream_color(const PairArguments& a, const TilePixels& pixels, float* block, const float* record,
                              uint32_t id) {
  const int channels = kChannels > 0 ? kChannels : pixels.channels;
  Pack result = Pack::load(block + kUpstreamImage * kLanes);
#pragma GCC unroll 4
  for (int c = 0; c < channels; ++c) {
    result = fma(Pack::load(pixels.upstream(block) + c * kLanes), channel<kChannels>(record, a.scene, id, c), result);
  }
  return result;
}

struct ExactPairSums {
  ExactRow<Pack> row;
  Pack colors[3];
  LG_INLINE ExactPairSums() {
    row = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (Pack& sum : colors) sum = Pack(0.0f);
  }
  LG_INLINE void add_to(float* to) const {
    const Pack sums[kRowFields] = {row.x, row.y, row.depth, row.radius, row.opacity, colors[0], colors[1], colors[2]};
    add_row(sums, to);
  }
};

// Recomputes the pixels `rest` of a block, at the outline, in double. A call, so that the loop over the blocks computes
// and keeps nothing for this rare case.
template <bool kOrthogonal>
__attribute__((noinline)) void compute_outline(const ExactView& view, const float* block, const float* record,
                                               const float* squares, unsigned rest, float* closeness, float* half2) {
  for (; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    float excess;
    exact_chord<float, kOrthogonal>(record, squares[i], excess);
    const ExactOutline outline =
        exact_outline<kOrthogonal>(record, view, block[kRay0 * kLanes + i], block[kRay1 * kLanes + i], excess);
    closeness[i] = outline.closeness;
    half2[i] = outline.half2;
  }
}

// The geometry of a sphere in a block's pixels, in double at the outline. `wanted`: the pixels that use it.
template <bool kOrthogonal>
LG_INLINE ExactGeometry<Pack> pair_geometry(const ExactView& view, const float* block, const float* record,
                                            const ExactChords<kOrthogonal>& chords, Pack square, MaskPack wanted) {
  ExactGeometry<Pack> g = chords.at(square);
  const MaskPack at_outline = wanted & exact_at_outline(g);
  if (any(at_outline)) {
    alignas(64) float squares[kLanes], closeness[kLanes], half2[kLanes];
    square.store(squares);
    g.closeness.store(closeness);
    g.half2.store(half2);
    compute_outline<kOrthogonal>(view, block, record, squares, to_bits(at_outline), closeness, half2);
    g.closeness = Pack::load(closeness);
    g.half2 = Pack::load(half2);
  }
  exact_finish<true>(record, g);
  return g;
}

// The pixels of a block that a sphere may hit, and its geometry in them.
struct BlockPairs {
  float* block;
  ExactOffset<Pack> offset;
  ExactGeometry<Pack> geometry;
  MaskPack mask;
};

// Finds the next block that the sphere hits, and removes the blocks up to it from `rest`; false if there is none.
template <bool kOrthogonal>
LG_INLINE bool next_block(const ExactView& view, float* blocks, int floats, const float* record, int place,
                          const TileSpan& span, const ExactChords<kOrthogonal>& chords, uint32_t& rest,
                          BlockPairs& found) {
  while (rest != 0) {
    const int b = __builtin_ctz(rest);
    rest &= rest - 1;
    found.block = blocks + static_cast<std::size_t>(b) * floats;
    const MaskPack looked = load_int(found.block + kLast * kLanes) > IntPack(place);
    const MaskPack inside = mask_from_bits(block_mask(span.columns, span.rows, b % kBlocksX, b / kBlocksX));
    found.offset = exact_offset<Pack, kOrthogonal>(record, load_ray(found.block), view);
    found.mask = looked & inside & (found.offset.square < Pack(record[exact_record::kMaxSquare]));
    if (!any(found.mask)) continue;
    found.geometry = pair_geometry(view, found.block, record, chords, found.offset.square, found.mask);
    return true;
  }
  return false;
}

// Adds the pairs of one sphere and the pixels of a block; returns how many take part, if the rows do not count them.
// `row` receives colours that do not fit into `sums`. kCamera: whether the sums of the pixels are requested. kPlain:
// without upstream gradients of depths and without opacities; the rows count the pairs.
template <bool kOrthogonal, int kChannels, bool kPlain, bool kCamera>
LG_INLINE int exact_pairs(const PairArguments& a, const TilePixels& pixels, const BlockPairs& pairs,
                          const float* record, uint32_t id, ExactPairSums& sums, float* row) {
  float* const block = pairs.block;
  const auto get = [&](int field) { return Pack::load(block + field * kLanes); };
  const Pack zero = 0.0f;
  const MaskPack mask = pairs.mask & (pairs.geometry.closeness > zero);
  // The upstream gradients are already divided by D.
  const ExactPixel<Pack> pixel{get(kPixelMaximum), get(kPixelLow), Pack(1.0f), zero};
  Pack d_depth_map = zero;
  if (!kPlain && a.up.d_depth != nullptr) {
    const MaskPack closest = load_int(block + kClosest * kLanes) == IntPack(static_cast<int>(id));
    d_depth_map = zero_unless(closest, get(kUpstreamDepth));
  }
  ExactPixelSums<Pack> own{zero, zero, zero};
  if constexpr (kCamera) own = {get(kSum0), get(kSum1), get(kSum2)};
  const Pack share = exact_add_pair<Pack, kOrthogonal, kPlain>(
      record, load_ray(block), pairs.offset, pairs.geometry, pixel, mask,
      upstream_color<kChannels>(a, pixels, block, record, id), d_depth_map, sums.row, own);
  if constexpr (kCamera) {
    own.x.store(block + kSum0 * kLanes);
    own.y.store(block + kSum1 * kLanes);
    own.spread.store(block + kSum2 * kLanes);
  }
  if constexpr (kChannels == 3) {
#pragma GCC unroll 3
    for (int c = 0; c < 3; ++c) {
      sums.colors[c] = fma(Pack::load(pixels.upstream(block) + c * kLanes), share, sums.colors[c]);
    }
  } else {
    for (int c = 0; c < pixels.channels; ++c) {
      row[5 + c] += sum(Pack::load(pixels.upstream(block) + c * kLanes) * share);
    }
  }
  if constexpr (kPlain) {
    sums.row.opacity = add_where(mask, sums.row.opacity, Pack(1.0f));
    return 0;
  }
  return __builtin_popcount(to_bits(mask));
}

// Adds the pairs of one sphere in a tile to its row. `place` is its place in the tile's list.
template <bool kOrthogonal, int kChannels, bool kPlain, bool kCamera>
LG_INLINE void exact_sphere(const PairArguments& a, const TilePixels& pixels, BandRows& band, uint32_t id, int place,
                            int tile_x, int tile_y) {
  // A local copy, which no store can alias, so that derived values are computed once for all blocks.
  alignas(64) float record[kRecordFloats];
  copy_record(record, a.prepared.records + static_cast<int64_t>(id) * kRecordFloats);
  // Keeps the record in memory; otherwise the compiler extracts every field from the copy's register for each block.
  asm("" : "+m"(record));
  const PixelRectangle& rectangle = a.prepared.rectangles[id];
  const TileSpan span = tile_span(rectangle, tile_x, tile_y);
  float* row = kChannels == 3 ? nullptr : band.row(a.rows, rectangle, id, 0);
  const ExactChords<kOrthogonal> chords(record);
  ExactPairSums sums;
  int touched = 0;
  // Copies in registers: stores to the blocks might change `pixels`.
  float* const blocks = pixels.blocks;
  const int floats = kChannels > 0 ? pixel_floats(kChannels) : pixels.floats;
  uint32_t rest = span.blocks();
  BlockPairs found;
  // Inline, so that `found` stays in registers.
  const auto next = [&]() __attribute__((always_inline)) {
    return next_block(a.view, blocks, floats, record, place, span, chords, rest, found);
  };
  const auto add = [&](const BlockPairs& pairs) __attribute__((always_inline)) {
    touched += exact_pairs<kOrthogonal, kChannels, kPlain, kCamera>(a, pixels, pairs, record, id, sums, row);
  };
#if defined(LUMIGRAD_ISA_portable)
  while (next()) add(found);
#else
  // The geometry of a block is computed before the sums of the block before it: a pair is a chain of operations that
  // each wait for the previous one, and longer than the processor looks ahead. Where packs are arrays, the copy of
  // `found` would cost more than that saves.
  for (bool more = next(); more;) {
    const BlockPairs pairs = found;
    more = next();
    add(pairs);
  }
#endif
  if (kPlain || touched > 0) sums.add_to(band.row(a.rows, rectangle, id, touched));
}

// Adds the sums that the pixels of a tile kept for the camera.
template <bool kOrthogonal>
void add_camera_sums(const PairArguments& a, const TilePixels& pixels, int tile_x, int tile_y, double* camera_sums) {
  const auto add = [&](int slot, Pack value) { camera_sums[slot] += static_cast<double>(sum(value)); };
  for (int b = 0; b < kBlocks; ++b) {
    const float* block = pixels.block(b);
    const auto get = [&](int field) { return Pack::load(block + field * kLanes); };
    const ExactRay<Pack> ray = load_ray(block);
    Pack ray_x, ray_y;
    exact_ray_gradient<Pack, kOrthogonal>(ray, a.view, {get(kSum0), get(kSum1), get(kSum2)}, ray_x, ray_y);
    if constexpr (kOrthogonal) {
      add(16, ray_x);
    } else {
      const Pack x = lane_x() + Pack(static_cast<float>(tile_x * kTileWidth + b % kBlocksX * 4));
      const Pack y = lane_y() + Pack(static_cast<float>(tile_y * kTileHeight + b / kBlocksX * 4));
      add(12, ray_x);
      add(13, ray_y);
      add(14, ray_x * (x - Pack(a.view.centre_x)));
      add(15, ray_y * (y - Pack(a.view.centre_y)));
    }
    add(18, get(kSum2));
  }
}

template <bool kOrthogonal, int kChannels, bool kPlain, bool kCamera>
void backward_tile(const PairArguments& a, const TilePixels& pixels, BandRows& band, BackgroundSums& background,
                   int tile_x, int tile_y, double* camera_sums) {
  load_tile<kOrthogonal>(a.camera, a.view, a.scene, a.up, pixels, tile_x * kTileWidth, tile_y * kTileHeight,
                         background);
  const int tile = tile_y * a.prepared.tiles_x + tile_x;
  const uint32_t begin = a.prepared.tile_starts[tile], end = a.prepared.tile_starts[tile + 1];
  const uint32_t* entries = a.prepared.entries;
  constexpr uint32_t kBetween = 512;
  for (uint32_t e = begin; e < end; ++e) {
    if (e % kBetween == 0 && is_stopping()) return;
    __builtin_prefetch(entries + e + kPrefetchEntries);
    // The spheres of a tile are scattered in memory.
    if (e + kPrefetch < end) a.prefetch(entries[e + kPrefetch]);
    exact_sphere<kOrthogonal, kChannels, kPlain, kCamera>(a, pixels, band, entries[e], static_cast<int>(e - begin),
                                                          tile_x, tile_y);
  }
  if constexpr (kCamera) add_camera_sums<kOrthogonal>(a, pixels, tile_x, tile_y, camera_sums);
}

LG_END
