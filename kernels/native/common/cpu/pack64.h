// Packs of doubles: one register of the instruction set each, so that sixteen values take several packs. Every
// operation works lane by lane.
#pragma once

#include "common/cpu/pack.h"
#include "common/math/number64.h"

#if defined(LUMIGRAD_ISA_avx512) || defined(LUMIGRAD_ISA_avx2)
#include <immintrin.h>
#endif

LG_BEGIN

inline constexpr int kLanes64 = kRegister / 2;
inline constexpr int kParts64 = kLanes / kLanes64;  // Packs of doubles in a pack of floats.

typedef double Doubles __attribute__((vector_size(kLanes64 * 8)));
typedef long long Longs __attribute__((vector_size(kLanes64 * 8)));

struct MaskPack64 {
  Longs v;
};

struct Pack64 {
  Doubles v;
  Pack64() = default;
  LG_INLINE Pack64(Doubles a) : v(a) {}
  LG_INLINE Pack64(double a) : v(Doubles{} + a) {}
};

LG_INLINE Pack64 operator+(Pack64 a, Pack64 b) { return a.v + b.v; }
LG_INLINE Pack64 operator-(Pack64 a, Pack64 b) { return a.v - b.v; }
LG_INLINE Pack64 operator*(Pack64 a, Pack64 b) { return a.v * b.v; }
LG_INLINE Pack64 operator/(Pack64 a, Pack64 b) { return a.v / b.v; }
LG_INLINE Pack64 operator-(Pack64 a) { return -a.v; }
LG_INLINE MaskPack64 operator<(Pack64 a, Pack64 b) { return {a.v < b.v}; }
LG_INLINE MaskPack64 operator<=(Pack64 a, Pack64 b) { return {a.v <= b.v}; }
LG_INLINE MaskPack64 operator>(Pack64 a, Pack64 b) { return {a.v > b.v}; }
LG_INLINE MaskPack64 operator>=(Pack64 a, Pack64 b) { return {a.v >= b.v}; }
LG_INLINE MaskPack64 operator&(MaskPack64 a, MaskPack64 b) { return {a.v & b.v}; }
LG_INLINE MaskPack64 operator|(MaskPack64 a, MaskPack64 b) { return {a.v | b.v}; }
LG_INLINE MaskPack64 operator!(MaskPack64 a) { return {~a.v}; }

LG_INLINE Pack64 select(MaskPack64 m, Pack64 a, Pack64 b) { return m.v ? a.v : b.v; }
LG_INLINE Pack64 zero_unless(MaskPack64 m, Pack64 a) { return m.v ? a.v : Doubles{}; }
LG_INLINE Pack64 abs(Pack64 a) { return reinterpret_cast<Doubles>(reinterpret_cast<Longs>(a.v) & INT64_MAX); }

#if defined(LUMIGRAD_ISA_avx512)
// min and max of doubles, like the instructions, return the second operand if either is NaN.
LG_INLINE Pack64 min(Pack64 a, Pack64 b) { return Doubles(_mm512_min_pd(a.v, b.v)); }
LG_INLINE Pack64 max(Pack64 a, Pack64 b) { return Doubles(_mm512_max_pd(a.v, b.v)); }
LG_INLINE Pack64 sqrt(Pack64 a) { return Doubles(_mm512_sqrt_pd(a.v)); }
LG_INLINE Pack64 fma(Pack64 a, Pack64 b, Pack64 c) { return Doubles(_mm512_fmadd_pd(a.v, b.v, c.v)); }
LG_INLINE Pack64 fnma(Pack64 a, Pack64 b, Pack64 c) { return Doubles(_mm512_fnmadd_pd(a.v, b.v, c.v)); }
LG_INLINE bool any(MaskPack64 a) { return _mm512_movepi64_mask(__m512i(a.v)) != 0; }
#elif defined(LUMIGRAD_ISA_avx2)
LG_INLINE Pack64 min(Pack64 a, Pack64 b) { return Doubles(_mm256_min_pd(a.v, b.v)); }
LG_INLINE Pack64 max(Pack64 a, Pack64 b) { return Doubles(_mm256_max_pd(a.v, b.v)); }
LG_INLINE Pack64 sqrt(Pack64 a) { return Doubles(_mm256_sqrt_pd(a.v)); }
LG_INLINE Pack64 fma(Pack64 a, Pack64 b, Pack64 c) { return Doubles(_mm256_fmadd_pd(a.v, b.v, c.v)); }
LG_INLINE Pack64 fnma(Pack64 a, Pack64 b, Pack64 c) { return Doubles(_mm256_fnmadd_pd(a.v, b.v, c.v)); }
LG_INLINE bool any(MaskPack64 a) { return _mm256_movemask_pd(__m256d(a.v)) != 0; }
#else
LG_INLINE Pack64 min(Pack64 a, Pack64 b) { return a.v < b.v ? a.v : b.v; }
LG_INLINE Pack64 max(Pack64 a, Pack64 b) { return a.v > b.v ? a.v : b.v; }
LG_INLINE Pack64 sqrt(Pack64 a) {
  for (int i = 0; i < kLanes64; ++i) a.v[i] = __builtin_sqrt(a.v[i]);
  return a;
}
LG_INLINE Pack64 fma(Pack64 a, Pack64 b, Pack64 c) { return a.v * b.v + c.v; }
LG_INLINE Pack64 fnma(Pack64 a, Pack64 b, Pack64 c) { return c.v - a.v * b.v; }
LG_INLINE bool any(MaskPack64 a) {
  long long bits = 0;
  for (int i = 0; i < kLanes64; ++i) bits |= a.v[i];
  return bits != 0;
}
#endif

LG_INLINE double sum(Pack64 a) {
  double result = 0.0;
  for (int i = 0; i < kLanes64; ++i) result += a.v[i];
  return result;
}

typedef float FloatsOfPart __attribute__((vector_size(kLanes64 * 4)));

// Converts part number `part` of a pack of floats.
LG_INLINE Pack64 widen(const Pack& a, int part) {
  FloatsOfPart floats;
  memcpy(&floats, reinterpret_cast<const float*>(&a) + part * kLanes64, sizeof(floats));
  return __builtin_convertvector(floats, Doubles);
}
LG_INLINE void narrow(Pack64 a, int part, Pack& to) {
  const FloatsOfPart floats = __builtin_convertvector(a.v, FloatsOfPart);
  memcpy(reinterpret_cast<float*>(&to) + part * kLanes64, &floats, sizeof(floats));
}
// The lanes of a part whose bits are set.
LG_INLINE MaskPack64 mask_of_part(unsigned bits, int part) {
  MaskPack64 mask;
  for (int i = 0; i < kLanes64; ++i) mask.v[i] = -static_cast<long long>(bits >> (part * kLanes64 + i) & 1u);
  return mask;
}
LG_INLINE unsigned bits_of(MaskPack64 mask) {
  unsigned bits = 0;
  for (int i = 0; i < kLanes64; ++i) bits |= static_cast<unsigned>(mask.v[i] & 1) << i;
  return bits;
}

LG_END
