// Places in a view's arrays, which have room for the Gaussians that reach pixels, and a few spare places.
#pragma once

#include <cstdint>

#include "common/cpu/pack.h"

LG_BEGIN_ENGINE(gaussians)

// Sixteen Gaussians of a scene in a view, starting at a multiple of sixteen. The bits tell which are drawn and which
// are not culled; the places of drawn Gaussians are consecutive from `first` on.
struct Sixteen {
  uint32_t first;
  uint16_t drawn, seen;
};

constexpr std::size_t sixteens_of(int64_t count) { return static_cast<std::size_t>((count + kLanes - 1) / kLanes); }

// A pack's Gaussians in a view: which are drawn, which are not culled, and the places of the drawn ones.
struct PackPlaces {
  unsigned drawn, seen;
  uint32_t of[kLanes];

  // Gaussians from number `first` on.
  LG_INLINE PackPlaces(const Sixteen* all, int64_t first, int used) {
    const int within = static_cast<int>(first % kLanes), here = kLanes - within;
    const Sixteen* from = all + first / kLanes;
    uint32_t next = from->first + __builtin_popcount(from->drawn & ((1u << within) - 1u));
    drawn = static_cast<unsigned>(from->drawn) >> within;
    seen = static_cast<unsigned>(from->seen) >> within;
    if (used > here) {
      drawn |= static_cast<unsigned>(from[1].drawn) << here;
      seen |= static_cast<unsigned>(from[1].seen) << here;
    }
    drawn &= (1u << used) - 1u;
    seen &= (1u << used) - 1u;
    for (int i = 0; i < used && drawn != 0; ++i) {
      if (i == here) next = from[1].first;
      of[i] = next;
      next += drawn >> i & 1u;
    }
  }
};

// Records which of a pack's Gaussians from number `first` on are drawn, with places from `place` on, and which are not
// culled. Gaussians from the last multiple of sixteen to `first` were recorded before.
LG_INLINE void note_places(Sixteen* all, int64_t first, int used, unsigned drawn, unsigned seen, int64_t place) {
  const int within = static_cast<int>(first % kLanes), here = kLanes - within;
  Sixteen* to = all + first / kLanes;
  const auto low = [](unsigned bits) { return static_cast<uint16_t>(bits); };
  if (within == 0) {
    *to = {static_cast<uint32_t>(place), low(drawn), low(seen)};
    return;
  }
  to->drawn |= low(drawn << within);
  to->seen |= low(seen << within);
  if (used <= here) return;
  const int before = __builtin_popcount(drawn & ((1u << here) - 1u));
  to[1] = {static_cast<uint32_t>(place + before), low(drawn >> here), low(seen >> here)};
}

LG_END
