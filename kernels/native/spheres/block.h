// What a block of 4x4 pixels remembers while the spheres of its tile are drawn.
#pragma once

#include "spheres/tiles.h"
#include "spheres/tracker.h"

LG_BEGIN_ENGINE(spheres)

// Packs in a block's state, in order; then K channels, T depths and T ids.
enum BlockField {
  kMaximum,     // M; exact: its whole part
  kMaximumLow,  // Exact: the rest of M. Compat: what is left of the background's weight.
  kDenominator,
  kMaxNear,
  kHits,    // int
  kLoaded,  // int; compat: candidates since the last check
  kActive,  // float: 1 while the pixel still draws
  kStop,    // int; exact: entries of the tile's list looked at
  kBlockFields
};

// Floats per block.
inline int block_floats(int channels, int track) { return (kBlockFields + channels + 2 * track) * kLanes; }

// What a thread needs to draw tiles.
struct TileScratch {
  Batch* batch;
  float* blocks;     // kBlocks states.
  float* shapes;     // [kBatch, 3 packs] exact: closeness, rest of the exponent and depth of each hit
  uint32_t* events;  // [kBatch] hits of a block: number within the batch, and the pixels << 16.
  uint16_t* checks;  // [kBatch] compat: pixels whose 65th candidate this is.
};

inline constexpr int kShapeFloats = 3 * kLanes;

inline std::size_t tile_scratch_bytes(int channels, int track) {
  const std::size_t floats = static_cast<std::size_t>(block_floats(channels, track)) * kBlocks + kBatch * kShapeFloats;
  const std::size_t bytes = sizeof(Batch) + sizeof(float) * floats + kBatch * (sizeof(uint32_t) + sizeof(uint16_t));
  return (bytes + 127) / 64 * 64;
}

inline TileScratch tile_scratch(char* memory, int channels, int track) {
  TileScratch s;
  s.batch = reinterpret_cast<Batch*>(memory);
  s.blocks = reinterpret_cast<float*>(memory + sizeof(Batch));
  s.shapes = s.blocks + static_cast<std::size_t>(block_floats(channels, track)) * kBlocks;
  s.events = reinterpret_cast<uint32_t*>(s.shapes + kBatch * kShapeFloats);
  s.checks = reinterpret_cast<uint16_t*>(s.events + kBatch);
  return s;
}

// Pixels of the block that lie on the film.
LG_INLINE MaskPack on_film(const Camera& c, int x, int y) {
  return ((lane_x() + Pack(static_cast<float>(x))) < Pack(static_cast<float>(c.width))) &
         ((lane_y() + Pack(static_cast<float>(y))) < Pack(static_cast<float>(c.height)));
}

LG_END
