// Counted packs of a pixel block: channels and tracked spheres, in registers if their number is known at compile time.
#pragma once

#include "common/pack.h"

LG_BEGIN_ENGINE(spheres)

inline constexpr float kNoDepth = 3.4e38f;

// `kCount` packs, or as many as it is told if kCount is 0, kept at `home` between uses.
template <int kCount>
struct Packs {
  Pack local[kCount];
  LG_INLINE Packs(float* home, int) {
    for (int i = 0; i < kCount; ++i) local[i] = Pack::load(home + i * kLanes);
  }
  static LG_INLINE int count(int) { return kCount; }
  LG_INLINE Pack get(int i) const { return local[i]; }
  LG_INLINE void set(int i, Pack value) { local[i] = value; }
  LG_INLINE void save(float* home) const {
    for (int i = 0; i < kCount; ++i) local[i].store(home + i * kLanes);
  }
};

template <>
struct Packs<0> {
  float* home;
  LG_INLINE Packs(float* h, int) : home(h) {}
  static LG_INLINE int count(int n) { return n; }
  LG_INLINE Pack get(int i) const { return Pack::load(home + i * kLanes); }
  LG_INLINE void set(int i, Pack value) { value.store(home + i * kLanes); }
  LG_INLINE void save(float*) const {}
};

// Spec 5.3: the closest spheres, ascending by depth; an equal depth goes in front of the older one. Ids are kept as
// bit patterns and only ever moved.
template <int kTrack>
struct Tracker {
  Packs<kTrack> depths, ids;
  int count;

  LG_INLINE Tracker(float* home, int n)
      : depths(home, n), ids(home + Packs<kTrack>::count(n) * kLanes, n), count(Packs<kTrack>::count(n)) {}

  LG_INLINE void save(float* home) const {
    depths.save(home);
    ids.save(home + count * kLanes);
  }

  LG_INLINE void insert(MaskPack hit, Pack depth, int id) {
    const int n = kTrack > 0 ? kTrack : count;
    const MaskPack enters = hit & (depth <= depths.get(n - 1));
    if (!any(enters)) return;
    Pack carried_depth = select(enters, depth, Pack(kNoDepth * 2.0f));
    Pack carried_id = from_bits(IntPack(id));
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const Pack here = depths.get(i), here_id = ids.get(i);
      const MaskPack swap = carried_depth <= here;
      depths.set(i, select(swap, carried_depth, here));
      ids.set(i, select(swap, carried_id, here_id));
      carried_depth = select(swap, here, carried_depth);
      carried_id = select(swap, here_id, carried_id);
    }
  }
};

LG_END
