// The film in tiles of 32 x 16 pixels, each of 8 x 4 blocks of 4 x 4 pixels: a block is a pack.
#pragma once

#include "common/pack.h"
#include "common/pixel_rectangle.h"

LG_BEGIN

inline constexpr int kTileWidth = 32, kTileHeight = 16;
inline constexpr int kBlocksX = kTileWidth / 4, kBlocksY = kTileHeight / 4, kBlocks = kBlocksX * kBlocksY;

// Coordinates of a block's pixels relative to its first one.
LG_INLINE Pack lane_x() {
  alignas(64) static constexpr float kX[kLanes] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  return Pack::load(kX);
}
LG_INLINE Pack lane_y() {
  alignas(64) static constexpr float kY[kLanes] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  return Pack::load(kY);
}

LG_END
