// A pack: 16 floats (Pack), 16 ints (IntPack) and 16 truth values (MaskPack) for the instruction set this file is
// compiled for. A block of 4x4 pixels is one pack on every machine, so that all machines compute the same.
#pragma once

#include "common/math/number.h"

#if defined(LUMIGRAD_ISA_avx512)
#include "common/cpu/pack_avx512.h"
#elif defined(LUMIGRAD_ISA_avx2)
#include "common/cpu/pack_avx2.h"
#else
#include "common/cpu/pack_portable.h"
#endif

LG_BEGIN

inline constexpr int kLanes = 16;
// Floats per register: a pack of compiler vectors is processed this many floats at a time.
#if defined(LUMIGRAD_ISA_avx512)
inline constexpr int kRegister = 16;
#elif defined(LUMIGRAD_ISA_avx2)
inline constexpr int kRegister = 8;
#else
inline constexpr int kRegister = 4;
#endif

LG_INLINE Pack lanes_0_to_15() {
  alignas(64) static constexpr float kRamp[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return Pack::load(kRamp);
}

// The first kCount floats from p, then zeros.
template <int kCount>
LG_INLINE Pack load_first(const float* p) {
  if constexpr (kCount == kLanes) return load_unaligned(p);
  alignas(64) float values[kLanes] = {};
  memcpy(values, p, sizeof(float) * kCount);
  return Pack::load(values);
}

// Calls body(lane) for each lane that is true.
template <class Body>
LG_INLINE void each_lane(MaskPack mask, const Body& body) {
  for (unsigned rest = to_bits(mask); rest != 0; rest &= rest - 1) body(__builtin_ctz(rest));
}
LG_INLINE float lane(Pack a, int i) {
  alignas(64) float values[kLanes];
  a.store(values);
  return values[i];
}

// Sums of packs in double, lane by lane: the values of each lane are summed in the order of their arrival, then the
// lanes in their order, so that every instruction set gets the same result.
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
