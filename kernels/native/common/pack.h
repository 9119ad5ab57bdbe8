// A pack: 16 floats (Pack), 16 ints (IntPack) and 16 truth values (MaskPack) for the instruction set this file is
// compiled for. A block of 4x4 pixels is one pack on every machine, so that all of them compute the same.
#pragma once

#include "common/number.h"

#if defined(LUMIGRAD_ISA_avx512)
#include "common/pack_avx512.h"
#elif defined(LUMIGRAD_ISA_avx2)
#include "common/pack_avx2.h"
#else
#include "common/pack_portable.h"
#endif

LG_BEGIN

inline constexpr int kLanes = 16;
// Floats in a register: those of a pack are taken so many at a time where the compiler's vectors do the work.
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

template <class Body>
LG_INLINE void each_lane(MaskPack mask, const Body& body) {
  for (unsigned rest = to_bits(mask); rest != 0; rest &= rest - 1) body(__builtin_ctz(rest));
}
LG_INLINE float lane(Pack a, int i) {
  alignas(64) float values[kLanes];
  a.store(values);
  return values[i];
}
LG_INLINE void set_lane(Pack& a, int i, float value) {
  alignas(64) float values[kLanes];
  a.store(values);
  values[i] = value;
  a = Pack::load(values);
}

LG_END
