// Differentiates the blending, Gaussian by Gaussian, nearest first (spec section 3.1). Instead of going back from the
// last contributor, each pixel keeps the remaining part: v . (rendered image) - v . (sum so far). A Shape defines what
// differs between kinds of Gaussians:
//   Visitor(data, id, feature_sums): a Gaussian; feature_sums is memory for [features, 16];
//   load(differentiation, x, y, block, background): fills a block's memory, see cpu/upstream.h;
//   visit(visitor, limits, block, sums): adds a block's pixels;
//   Sums, with clear(), and add_to(visitor, target), which adds the sums over the lanes.
#pragma once

#include <cstring>

#include "gaussians/cpu/bands.h"
#include "gaussians/cpu/upstream.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)

struct BackLimits {
  Pack log2_alpha_min, alpha_max, transmittance_min;
  bool strict;   // Whether a pixel ends only below the limit, not at it.
  bool passing;  // Whether gradients pass through the limit of alpha, as in the depth fork.
};

struct Differentiation {
  const ViewData& data;
  const RowData& rows;
  const Bands& bands;
  const UpstreamSource& source;
  BackLimits limits;
  bool absolute;  // Whether absolute gradients of the projected means are requested.
};

// Clears a row before the first addition to it.
LG_INLINE void touch(const RowTarget& to, int total) {
  if (*to.touched != 0) return;
  *to.touched = 1;
  Pack(0.0f).store(to.fields);
  if (to.features != nullptr) std::memset(to.features, 0, sizeof(float) * static_cast<std::size_t>(total));
}

template <class Shape>
void differentiate_tile(const Differentiation& d, int band, int tile, float* blocks, int block_floats,
                        float* feature_sums, double* background) {
  const int left = tile % d.data.tiles_x * kTileWidth, top = tile / d.data.tiles_x * kTileHeight;
  for (int b = 0; b < kBlocks; ++b) {
    Shape::load(d, left + b % kBlocksX * 4, top + b / kBlocksX * 4, blocks + b * block_floats, background);
  }
  const uint32_t end = d.data.tile_starts[tile + 1];
  constexpr uint32_t kAhead = 6, kBetween = 512;
  for (uint32_t i = d.data.tile_starts[tile]; i < end; ++i) {
    if (i % kBetween == 0 && is_stopping()) return;
    if (i + kAhead < end) {
      // The Gaussians of a tile and their rows are scattered in memory.
      const int64_t ahead = d.data.entries[i + kAhead];
      __builtin_prefetch(d.data.records + ahead * kRecordFloats);
      __builtin_prefetch(d.rows.row(ahead), 1);
    }
    uint32_t mask = d.data.masks[i];
    if (mask == 0) continue;
    const uint32_t id = d.data.entries[i];
    const typename Shape::Visitor g(d, id, feature_sums);
    typename Shape::Sums sums;
    sums.clear();
    for (; mask != 0; mask &= mask - 1) Shape::visit(g, d.limits, blocks + __builtin_ctz(mask) * block_floats, sums);
    const RowTarget to = row_target(d.bands, d.rows, d.data, band, id);
    touch(to, g.total);
    sums.add_to(g, to);
  }
}

using DifferentiateTile = void (*)(const Differentiation&, int, int, float*, int, float*, double*);

// Sums over the pixels of a view with `run`, which needs `block_packs` packs of memory for each block.
void differentiate_view(const View* views, int view, const Settings& settings, const Scene& scene, const Upstream& up,
                        const Gradients& gradients, Pass& pass, DifferentiateTile run, int block_packs, Workspace& w);
void blend_surfels_backward(const View* views, int view, const Settings& settings, const Scene& scene,
                            const Upstream& up, const Gradients& gradients, Pass& pass, Workspace& w);

LG_END
