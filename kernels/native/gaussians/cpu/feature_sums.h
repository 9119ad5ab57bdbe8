// Sums of the features of a block's pixels.
#pragma once

#include "common/cpu/pack.h"
#include "gaussians/math/record.h"

LG_BEGIN_ENGINE(gaussians)

// Features of sixteen pixels, in registers: an array would stay in memory.
template <int kFeatures>
struct Sums {
  Pack a, b, c, d, e, f, g;
  LG_INLINE void load(const float* from) {
    a = Pack::load(from);
    if constexpr (kFeatures > 1) b = Pack::load(from + kLanes);
    if constexpr (kFeatures > 2) c = Pack::load(from + 2 * kLanes);
    if constexpr (kFeatures > 3) d = Pack::load(from + 3 * kLanes);
    if constexpr (kFeatures > 4) e = Pack::load(from + 4 * kLanes);
    if constexpr (kFeatures > 5) f = Pack::load(from + 5 * kLanes);
    if constexpr (kFeatures > 6) g = Pack::load(from + 6 * kLanes);
  }
  LG_INLINE void store(float* to) const {
    a.store(to);
    if constexpr (kFeatures > 1) b.store(to + kLanes);
    if constexpr (kFeatures > 2) c.store(to + 2 * kLanes);
    if constexpr (kFeatures > 3) d.store(to + 3 * kLanes);
    if constexpr (kFeatures > 4) e.store(to + 4 * kLanes);
    if constexpr (kFeatures > 5) f.store(to + 5 * kLanes);
    if constexpr (kFeatures > 6) g.store(to + 6 * kLanes);
  }
  LG_INLINE void add(Pack weight, const float* of) {
    a = fma(weight, Pack(of[0]), a);
    if constexpr (kFeatures > 1) b = fma(weight, Pack(of[1]), b);
    if constexpr (kFeatures > 2) c = fma(weight, Pack(of[2]), c);
    if constexpr (kFeatures > 3) d = fma(weight, Pack(of[3]), d);
    if constexpr (kFeatures > 4) e = fma(weight, Pack(of[4]), e);
    if constexpr (kFeatures > 5) f = fma(weight, Pack(of[5]), f);
    if constexpr (kFeatures > 6) g = fma(weight, Pack(of[6]), g);
  }
};

// Any number of features, in memory.
template <>
struct Sums<0> {
  float* at;
  int count;
  LG_INLINE void add(Pack weight, const float* f) {
    for (int i = 0; i < count; ++i) fma(weight, Pack(f[i]), Pack::load(at + i * kLanes)).store(at + i * kLanes);
  }
};

LG_END
