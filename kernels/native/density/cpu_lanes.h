// Sixteen rows at a time.
#pragma once

#include "common/pack.h"
#include "density/math_normal.h"

LG_BEGIN_ENGINE(density)

// The words of rows [first, first + 16), word k of lane i at [k][i].
struct LaneWords {
  alignas(64) uint32_t words[4][kLanes];

  LG_INLINE LaneWords(const Draw& draw, uint32_t first) {
    for (int i = 0; i < kLanes; ++i) {
      const Words w = words_of(draw, first + static_cast<uint32_t>(i));
      words[0][i] = w.a;
      words[1][i] = w.b;
      words[2][i] = w.c;
      words[3][i] = w.d;
    }
  }
};

// Words 2 k and 2 k + 1 as a pair of normals.
LG_INLINE NormalPair<Pack> normals_of(const LaneWords& lanes, int k) {
  alignas(64) float unit[kLanes], turn[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    unit[i] = unit_of(lanes.words[2 * k][i]);
    turn[i] = turn_of(lanes.words[2 * k + 1][i]);
  }
  return normal_pair(Pack::load(unit), Pack::load(turn));
}

LG_END
