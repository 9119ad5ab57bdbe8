// Levels: values from 0 to 1 as whole numbers from 0 to 255, which displays and image files take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/cpu/pack.h"

LG_BEGIN

// Rounds, ties to even; values outside are clamped. NaN becomes 0, since max returns its second argument for NaN.
LG_INLINE void store_levels(Pack values, uint8_t* to) {
  const Pack scaled = min(max(values * Pack(255.0f), Pack(0.0f)), Pack(255.0f));
  store_bytes(truncate(round_whole(scaled)), to);
}

// Writes the levels of `count` values, which must be aligned and padded to a whole pack.
LG_INLINE void write_levels(const float* values, std::size_t count, uint8_t* to) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_levels(Pack::load(values + i), to + i);
  if (i == count) return;
  uint8_t rest[kLanes];
  store_levels(Pack::load(values + i), rest);
  std::memcpy(to + i, rest, count - i);
}

LG_END
