// The list of one tile, in batches: finds the ellipses that overlap each block.
#pragma once

#include "common/cpu/transpose.h"
#include "gaussians/cpu/view.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)

// The number of ellipses that are assigned to blocks at a time: their records fit into the first-level cache, and their
// numbers into a byte.
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
  float margin = 0.0f;  // Pixels by which the blocks grow on each side.
};

LG_INLINE int block_left(int block) { return block % kBlocksX * 4; }
LG_INLINE int block_top(int block) { return block / kBlocksX * 4; }

// The blocks' columns and rows, relative to the centres of sixteen ellipses: the terms of best_log2_alpha
// (math/blend.h) that all blocks of a column or row share. On a GPU, where registers are scarce, sharing them does not
// pay.
struct Side {
  Pack low, high;
  Pack along;  // Where the ellipse is closest to the edge that faces the centre, on the other axis.
  Pack u;      // The edge's part of the ellipse's u.
  Pack rest;   // log2 alpha of a row, without u.
};

LG_INLINE Side column_side(const Ellipse<Pack>& e, const Slopes<Pack>& s, Pack low, Pack high) {
  const Pack edge = min(max(Pack(0.0f), low), high);
  return {low, high, s.along_x * edge, e.ux * edge, e.log2_opacity};
}

LG_INLINE Side row_side(const Ellipse<Pack>& e, const Slopes<Pack>& s, Pack low, Pack high) {
  const Pack edge = min(max(Pack(0.0f), low), high), v = e.vy * edge;
  return {low, high, s.along_y * edge, e.uy * edge, fnma(v, v, e.log2_opacity)};
}

LG_INLINE Pack best_log2_alpha(const Ellipse<Pack>& e, const Side& column, const Side& row) {
  const Pack dy = min(max(column.along, row.low), row.high), v = e.vy * dy, beside = fma(e.uy, dy, column.u);
  const Pack dx = min(max(row.along, column.low), column.high), above = fma(e.ux, dx, row.u);
  return max(fnma(beside, beside, fnma(v, v, e.log2_opacity)), fnma(above, above, row.rest));
}

// The rows of up to sixteen Gaussians from number `first` on, by field.
template <class RowAt>
LG_INLINE void load_fields(const RowAt& row, int first, int used, Pack f[kLanes]) {
  for (int i = 0; i < kLanes; ++i) f[i] = Pack::load(row(first + (i < used ? i : used - 1)));
  transpose_16(f);
}

// Appends each of the sixteen ellipses from number `first` on to the lists of the blocks that it reaches.
LG_INLINE void deal(Batch& batch, const Ellipse<Pack>& e, const TileOrigin& tile, int first, int used) {
  const Slopes<Pack> slopes = slopes_of(e);
  const Pack x = e.x - Pack(static_cast<float>(tile.left) + tile.pixel_center - tile.margin);
  const Pack y = e.y - Pack(static_cast<float>(tile.top) + tile.pixel_center - tile.margin);
  const Pack least = Pack(tile.log2_alpha_min - kReachMargin), side = Pack(3.0f + 2.0f * tile.margin);
  const MaskPack present = mask_from_bits((1u << used) - 1u);
  Side columns[kBlocksX];
  for (int bx = 0; bx < kBlocksX; ++bx) {
    const Pack x1 = x - Pack(4.0f * static_cast<float>(bx));
    columns[bx] = column_side(e, slopes, x1 - side, x1);
  }
  for (int by = 0; by < kBlocksY; ++by) {
    const Pack y1 = y - Pack(4.0f * static_cast<float>(by));
    const Side row = row_side(e, slopes, y1 - side, y1);
#pragma GCC unroll 8
    for (int bx = 0; bx < kBlocksX; ++bx) {
      const MaskPack hit = (best_log2_alpha(e, columns[bx], row) >= least) & present;
      const int block = by * kBlocksX + bx;
      batch.lengths[block] += store_set_lanes(hit, first, batch.lists[block] + batch.lengths[block]);
    }
  }
}

// Drops Gaussians from blocks outside their rectangles: Inria's and gsplat's rectangles of whole tiles, whose edges are
// edges of blocks, may be smaller than the ellipse.
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

// Fetches `count` entries and assigns them to the blocks, in order.
inline void fill_batch(Batch& batch, const ViewData& data, const TileOrigin& tile, bool rectangles,
                       const uint32_t* entries, int count) {
  for (int b = 0; b < kBlocks; ++b) batch.lengths[b] = 0;
  constexpr int kAhead = 16;
  for (int i = 0; i < count; ++i) {
    // The ellipses of a tile are scattered in memory.
    if (i + kAhead < count) {
      const int64_t ahead = static_cast<int64_t>(entries[i + kAhead]) * kRecordFloats;
      __builtin_prefetch(data.records + ahead);
      if (data.bounds != nullptr) __builtin_prefetch(data.bounds + ahead);
    }
    Pack::load(data.records + static_cast<int64_t>(entries[i]) * kRecordFloats).store(batch.records[i]);
  }
  const auto all = [&](const auto& record_at) {
    for (int i = 0; i < count; i += kLanes) {
      const int used = count - i < kLanes ? count - i : kLanes;
      Pack f[kLanes];
      load_fields(record_at, i, used, f);
      const Ellipse<Pack> e = {f[record::kX],  f[record::kY],  f[record::kUx],
                               f[record::kUy], f[record::kVy], f[record::kLog2Opacity]};
      deal(batch, e, tile, i, used);
    }
  };
  if (data.bounds != nullptr) {
    all([&](int i) { return data.ellipse(entries[i]); });
  } else {
    all([&](int i) { return batch.records[i]; });
  }
  if (rectangles) drop_outside(batch, tile, data.rectangles, entries);
}

LG_END
