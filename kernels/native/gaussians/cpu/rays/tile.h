// The list of one tile, in batches: finds the Gaussians that may reach the rays of each block.
#pragma once

#include "gaussians/cpu/rays/pinholes.h"
#include "gaussians/cpu/tile.h"

LG_BEGIN_ENGINE(gaussians)

using RayBatch = Batch;

// Along rays a pixel also sums the distance and the normal.
inline constexpr int kGeometryFields = 4;

// Assigns Gaussians to blocks by their ellipses in a pinhole that approximates the camera.
LG_INLINE void deal_outlines(RayBatch& batch, const ViewData& data, const float* seen, const uint32_t* entries,
                             int count) {
  const TileOrigin tile = {0, 0, 0.0f, -1.0f, seen[pinhole::kMargin]};
  Pack matrix[pinhole::kMargin];
  for (int i = 0; i < pinhole::kMargin; ++i) matrix[i] = Pack(seen[i]);
  const auto bounds_at = [&](int i) { return data.bounds + static_cast<int64_t>(entries[i]) * kRecordFloats; };
  for (int i = 0; i < count; i += kLanes) {
    const int used = count - i < kLanes ? count - i : kLanes;
    Pack f[kLanes];
    load_fields(bounds_at, i, used, f);
    deal(batch, outlines_of(pinhole_matrix(matrix), ray_bounds_of(f)).ellipse, tile, i, used);
  }
}

// Assigns Gaussians to blocks by the beams of the blocks.
LG_INLINE void deal_reached(RayBatch& batch, const ViewData& data, const RayField& field, int tile,
                            const uint32_t* entries, int count) {
  const float* beams = field.blocks + static_cast<int64_t>(tile) * (kBlocks / kLanes) * kBeamFloats;
  for (int i = 0; i < count; ++i) {
    const float* bounds = data.bounds + static_cast<int64_t>(entries[i]) * kRecordFloats;
    for (int half = 0; half < kBlocks / kLanes; ++half) {
      for (unsigned hit = to_bits(reached(field, beams + half * kBeamFloats, bounds)); hit != 0; hit &= hit - 1) {
        const int block = half * kLanes + __builtin_ctz(hit);
        batch.lists[block][batch.lengths[block]++] = static_cast<uint8_t>(i);
      }
    }
  }
}

inline void fill_ray_batch(RayBatch& batch, const ViewData& data, const RayField& field, int tile, int left, int top,
                           bool rectangles, const uint32_t* entries, int count) {
  for (int b = 0; b < kBlocks; ++b) batch.lengths[b] = 0;
  constexpr int kAhead = 16;
  for (int i = 0; i < count; ++i) {
    // The Gaussians of a tile are scattered in memory.
    if (i + kAhead < count) {
      const int64_t ahead = static_cast<int64_t>(entries[i + kAhead]) * kRecordFloats;
      __builtin_prefetch(data.records + ahead);
      __builtin_prefetch(data.bounds + ahead);
      __builtin_prefetch(data.features_of(entries[i + kAhead]));
    }
    Pack::load(data.records + static_cast<int64_t>(entries[i]) * kRecordFloats).store(batch.records[i]);
  }
  const float* seen = field.one_origin ? field.tile_pinholes + static_cast<int64_t>(tile) * kLanes : nullptr;
  if (seen != nullptr && seen[pinhole::kMargin] >= 0.0f) {
    deal_outlines(batch, data, seen, entries, count);
  } else {
    deal_reached(batch, data, field, tile, entries, count);
  }
  if (rectangles) drop_outside(batch, {left, top, 0.5f, 0.0f}, data.rectangles, entries);
}

LG_END
