// The list of one tile, in batches: finds the ellipses that overlap each block.
#pragma once

#include "common/cpu/transpose.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)

// Ellipses that are dealt out to the blocks before the next are fetched: their records fit into the first-level cache,
// and their numbers into a byte.
inline constexpr int kBatch = 128;

struct Batch {
  alignas(64) float records[kBatch][kRecordFloats];
  uint8_t lists[kBlocks][kBatch + kLanes];
  int lengths[kBlocks];
};

struct TileOrigin {
  int left, top;  // Pixels.
  float pixel_center;
  float log2_alpha_min;
};

LG_INLINE int block_left(int block) { return block % kBlocksX * 4; }
LG_INLINE int block_top(int block) { return block / kBlocksX * 4; }

// Appends those of the sixteen records from number `first` on that reach a block to its list.
LG_INLINE void deal(Batch& batch, const TileOrigin& tile, int first, int used) {
  Pack f[kLanes];
  for (int i = 0; i < kLanes; ++i) f[i] = Pack::load(batch.records[first + (i < used ? i : used - 1)]);
  transpose_16(f);
  const Ellipse<Pack> e = {f[record::kX],  f[record::kY],  f[record::kUx],
                           f[record::kUy], f[record::kVy], f[record::kLog2Opacity]};
  const Slopes<Pack> slopes = slopes_of(e);
  const Pack x = e.x - Pack(static_cast<float>(tile.left) + tile.pixel_center);
  const Pack y = e.y - Pack(static_cast<float>(tile.top) + tile.pixel_center);
  const Pack least = Pack(tile.log2_alpha_min - kReachMargin), side = Pack(3.0f);
  const MaskPack present = mask_from_bits((1u << used) - 1u);
  for (int by = 0; by < kBlocksY; ++by) {
    const Pack y1 = y - Pack(4.0f * static_cast<float>(by)), y0 = y1 - side;
    for (int bx = 0; bx < kBlocksX; ++bx) {
      const Pack x1 = x - Pack(4.0f * static_cast<float>(bx)), x0 = x1 - side;
      const MaskPack hit = (best_log2_alpha(e, slopes, x0, x1, y0, y1) >= least) & present;
      const int block = by * kBlocksX + bx;
      batch.lengths[block] += store_set_lanes(hit, first, batch.lists[block] + batch.lengths[block]);
    }
  }
}

// Inria's squares of tiles end where the ellipse may not.
inline void drop_outside(Batch& batch, const TileOrigin& tile, const PixelRectangle* rectangles,
                         const uint32_t* entries) {
  for (int block = 0; block < kBlocks; ++block) {
    const int left = tile.left + block_left(block), top = tile.top + block_top(block);
    int kept = 0;
    for (int i = 0; i < batch.lengths[block]; ++i) {
      const uint8_t number = batch.lists[block][i];
      const PixelRectangle& r = rectangles[entries[number]];
      batch.lists[block][kept] = number;
      kept += left < r.x1 && left + 4 > r.x0 && top < r.y1 && top + 4 > r.y0;
    }
    batch.lengths[block] = kept;
  }
}

// Fetches `count` entries and deals them out to the blocks, in order.
inline void fill_batch(Batch& batch, const ViewData& data, const TileOrigin& tile, bool inria, const uint32_t* entries,
                       int count) {
  for (int b = 0; b < kBlocks; ++b) batch.lengths[b] = 0;
  constexpr int kAhead = 16;
  for (int i = 0; i < count; ++i) {
    // The ellipses of a tile lie anywhere in memory.
    if (i + kAhead < count)
      __builtin_prefetch(data.records + static_cast<int64_t>(entries[i + kAhead]) * kRecordFloats);
    Pack::load(data.records + static_cast<int64_t>(entries[i]) * kRecordFloats).store(batch.records[i]);
  }
  for (int i = 0; i < count; i += kLanes) deal(batch, tile, i, count - i < kLanes ? count - i : kLanes);
  if (inria) drop_outside(batch, tile, data.rectangles, entries);
}

LG_END
