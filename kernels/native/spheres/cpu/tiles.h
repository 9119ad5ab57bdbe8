// The spheres that overlap each tile of the image, and their use by its blocks.
#pragma once

#include "common/cpu/tile_lists.h"
#include "spheres/cpu/engine.h"
#include "spheres/math/setup.h"

LG_BEGIN_ENGINE(spheres)

// The number of spheres of a tile's list to fetch and blend at a time: their records fit into the first-level cache.
inline constexpr int kBatch = 256;

// The result of `prepare` for a scene and a view: the spheres of each tile, nearest first.
struct Prepared {
  int tiles_x, tiles_y;
  const float* records;              // [N, 16]
  const PixelRectangle* rectangles;  // [N] candidate pixels
  const float* area;                 // [N] compat: area of Pulsar's rectangle, negative if it is below 3 x 3.
  const uint32_t* tile_starts;       // [tiles + 1]
  const uint32_t* entries;           // Sphere numbers.
};

// The result of `prepare` in the workspace.
Prepared prepared_before(const Camera& camera, const Scene& scene, Workspace& workspace);

// Sets up only the records and areas of a view's visible spheres for which `only` is not 0.
void set_up_only(const Camera& camera, const Settings& settings, const Scene& scene, const int32_t* only,
                 Workspace& workspace);

Prepared prepare(const Camera& camera, const Settings& settings, const Scene& scene, Workspace& workspace,
                 StageClock& clock);

// Part of a tile's list.
struct Batch {
  alignas(64) float records[kBatch][kRecordFloats];
  uint32_t ids[kBatch];
  alignas(64) int across[kBatch], down[kBatch];  // The halves of the rectangles.
  // The block's spheres: number within the batch, and candidate pixels << 16. Padded, since writes may extend a pack
  // beyond the list.
  int lists[kBlocks][kBatch + kLanes];
  int lengths[kBlocks];
};

// Pixels of the block at (bx, by) whose bits are set in the tile's column and row masks.
LG_INLINE uint32_t block_mask(uint32_t columns, uint32_t rows, int bx, int by) {
  static constexpr uint16_t kSpread[16] = {0x0000, 0x0001, 0x0010, 0x0011, 0x0100, 0x0101, 0x0110, 0x0111,
                                           0x1000, 0x1001, 0x1010, 0x1011, 0x1100, 0x1101, 0x1110, 0x1111};
  return ((columns >> (4 * bx)) & 15u) * kSpread[(rows >> (4 * by)) & 15u];
}

struct TileSpan {
  uint32_t columns, rows;  // Bits of the tile's pixel columns and rows.
  int bx0, bx1, by0, by1;  // Blocks.
  // Bit i: block i.
  LG_INLINE uint32_t blocks() const {
    static_assert(kBlocksX == 8 && kBlocks == 32);
    const uint32_t across = (1u << bx1) - (1u << bx0);
    const uint64_t down = (uint64_t{1} << (8 * by1)) - (uint64_t{1} << (8 * by0));
    return (across * 0x01010101u) & static_cast<uint32_t>(down);
  }
};

LG_INLINE TileSpan tile_span(const PixelRectangle& r, int tile_x, int tile_y) {
  const int left = tile_x * kTileWidth, top = tile_y * kTileHeight;
  const int x0 = r.x0 > left ? r.x0 - left : 0, y0 = r.y0 > top ? r.y0 - top : 0;
  const int x1 = r.x1 - left < kTileWidth ? r.x1 - left : kTileWidth;
  const int y1 = r.y1 - top < kTileHeight ? r.y1 - top : kTileHeight;
  const uint32_t columns = static_cast<uint32_t>(((uint64_t{1} << x1) - 1) & ~((uint64_t{1} << x0) - 1));
  const uint32_t rows = ((1u << y1) - 1u) & ~((1u << y0) - 1u);
  return {columns, rows, x0 >> 2, (x1 + 3) >> 2, y0 >> 2, (y1 + 3) >> 2};
}

LG_INLINE void copy_record(float* to, const float* from) { Pack::load(from).store(to); }

// The bits [low, high) among the `count` bits from `first` on.
LG_INLINE IntPack bits_between(IntPack low, IntPack high, int first, int count) {
  const IntPack zero = 0, one = 1, last = count, base = first;
  return (one << min(max(high - base, zero), last)) - (one << min(max(low - base, zero), last));
}

// Assigns spheres [first, first + 16) of the batch to the blocks, 16 at a time: spheres are unordered on the film, so
// that a loop over the blocks of each would mispredict.
LG_INLINE void deal(Batch& batch, int first, IntPack across, IntPack down, int left, int top) {
  const IntPack lower = 0xffff;
  const IntPack x0 = across & lower, x1 = upper_half(across), y0 = (down & lower) << 2, y1 = upper_half(down) << 2;
  const IntPack numbers = truncate(lanes_0_to_15()) + IntPack(first);
  IntPack columns[kBlocksX];
#pragma GCC unroll 8
  for (int bx = 0; bx < kBlocksX; ++bx) {
    const IntPack row = bits_between(x0, x1, left + 4 * bx, 4), two = row | (row << 4);
    columns[bx] = (two | (two << 8)) << 16;
  }
  for (int by = 0; by < kBlocksY; ++by) {
    // A row's pixels are four bits, in the upper half as in the lists.
    const IntPack rows = bits_between(y0, y1, 4 * top + 16 * by, 16) << 16;
#pragma GCC unroll 8
    for (int bx = 0; bx < kBlocksX; ++bx) {
      const int block = by * kBlocksX + bx;
      const IntPack pixels = rows & columns[bx];
      int& length = batch.lengths[block];
      length += store_set(~(pixels == IntPack(0)), numbers | pixels, batch.lists[block] + length);
    }
  }
}

// Prefetches the first batch of a list: spheres are scattered in memory, in the order of their numbers.
LG_INLINE void request_batch(const Prepared& prepared, const uint32_t* entries, int count) {
  for (int i = 0; i < count && i < kBatch; ++i) {
    __builtin_prefetch(prepared.records + static_cast<int64_t>(entries[i]) * kRecordFloats, 0, 2);
    __builtin_prefetch(prepared.rectangles + entries[i], 0, 2);
  }
}

// Fetches the records and rectangles of `count` entries.
inline void fetch_batch(Batch& batch, const Prepared& prepared, const uint32_t* entries, int count) {
  for (int i = 0; i < count; ++i) {
    const uint32_t id = entries[i];
    batch.ids[i] = id;
    copy_record(batch.records[i], prepared.records + static_cast<int64_t>(id) * kRecordFloats);
    const PixelRectangle r = prepared.rectangles[id];
    batch.across[i] = r.x0 | r.x1 << 16;
    batch.down[i] = r.y0 | r.y1 << 16;
  }
  // Rectangles beyond the last sphere are empty.
  for (int i = count; i % kLanes != 0; ++i) batch.across[i] = batch.down[i] = 0;
}

// Fetches entries and assigns them to the blocks, in order.
inline void fill_batch(Batch& batch, const Prepared& prepared, int tile_x, int tile_y, const uint32_t* entries,
                       int count) {
  fetch_batch(batch, prepared, entries, count);
  for (int b = 0; b < kBlocks; ++b) batch.lengths[b] = 0;
  for (int first = 0; first < count; first += kLanes) {
    deal(batch, first, IntPack::load(batch.across + first), IntPack::load(batch.down + first), tile_x * kTileWidth,
         tile_y * kTileHeight);
  }
}

LG_END
