// The list of one tile, in batches: finds the Gaussians that may reach the rays of each block.
#pragma once

#include "gaussians/cpu/rays/field.h"
#include "gaussians/cpu/tile.h"

LG_BEGIN_ENGINE(gaussians)

using RayBatch = Batch;

// Along rays a pixel also sums the distance and the normal.
inline constexpr int kGeometryFields = 4;

inline void fill_ray_batch(RayBatch& batch, const ViewData& data, const RayField& field, int tile, int left, int top,
                           bool rectangles, const uint32_t* entries, int count) {
  for (int b = 0; b < kBlocks; ++b) batch.lengths[b] = 0;
  constexpr int kAhead = 16;
  const float* beams = field.blocks + static_cast<int64_t>(tile) * (kBlocks / kLanes) * kBeamFloats;
  for (int i = 0; i < count; ++i) {
    // The Gaussians of a tile lie anywhere in memory.
    if (i + kAhead < count) {
      const int64_t ahead = static_cast<int64_t>(entries[i + kAhead]) * kRecordFloats;
      __builtin_prefetch(data.records + ahead);
      __builtin_prefetch(data.bounds + ahead);
      __builtin_prefetch(data.features_of(entries[i + kAhead]));
    }
    const int64_t row = static_cast<int64_t>(entries[i]) * kRecordFloats;
    Pack::load(data.records + row).store(batch.records[i]);
    for (int half = 0; half < kBlocks / kLanes; ++half) {
      for (unsigned hit = to_bits(reached(field, beams + half * kBeamFloats, data.bounds + row)); hit != 0;
           hit &= hit - 1) {
        const int block = half * kLanes + __builtin_ctz(hit);
        batch.lists[block][batch.lengths[block]++] = static_cast<uint8_t>(i);
      }
    }
  }
  if (rectangles) drop_outside(batch, {left, top, 0.5f, 0.0f}, data.rectangles, entries);
}

LG_END
