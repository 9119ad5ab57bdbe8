// Sums of packs in double, lane by lane: what lane i was given is added up in the order it came, and the lanes are
// added up in their order, so that every instruction set gets the same.
#pragma once

#include "common/pack.h"

LG_BEGIN

class LaneSums {
 public:
  LG_INLINE LaneSums() {
    for (int i = 0; i < kParts; ++i) part_[i] = Doubles{};
  }
  LG_INLINE void add(Pack a) {
    Floats floats[kParts];
    memcpy(floats, &a, sizeof(a));
    for (int i = 0; i < kParts; ++i) part_[i] += __builtin_convertvector(floats[i], Doubles);
  }
  // a * b, which may be too large for a float.
  LG_INLINE void add_product(Pack a, Pack b) {
    Floats left[kParts], right[kParts];
    memcpy(left, &a, sizeof(a));
    memcpy(right, &b, sizeof(b));
    for (int i = 0; i < kParts; ++i) {
      part_[i] += __builtin_convertvector(left[i], Doubles) * __builtin_convertvector(right[i], Doubles);
    }
  }
  LG_INLINE double total() const {
    double sum = 0.0;
    for (int i = 0; i < kParts; ++i) {
      for (int k = 0; k < kWide; ++k) sum += part_[i][k];
    }
    return sum;
  }

 private:
  static constexpr int kWide = kRegister / 2;
  static constexpr int kParts = kLanes / kWide;
  typedef double Doubles __attribute__((vector_size(kWide * 8)));
  typedef float Floats __attribute__((vector_size(kWide * 4)));
  Doubles part_[kParts];
};

LG_END
