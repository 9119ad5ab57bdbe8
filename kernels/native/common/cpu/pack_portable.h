// Packs in the compiler's generic vectors, which it maps to the registers of the target, or to single floats.
#pragma once

#include "common/math/number.h"

LG_BEGIN

typedef float Float16Lanes __attribute__((vector_size(64)));
typedef int Int16Lanes __attribute__((vector_size(64)));

struct MaskPack {
  Int16Lanes v;
};

struct IntPack {
  Int16Lanes v;
  IntPack() = default;
  LG_INLINE IntPack(Int16Lanes a) : v(a) {}
  LG_INLINE IntPack(int a) : v(Int16Lanes{} + a) {}
  static LG_INLINE IntPack load(const int* p) { return *reinterpret_cast<const Int16Lanes*>(p); }
  LG_INLINE void store(int* p) const { *reinterpret_cast<Int16Lanes*>(p) = v; }
};

struct Pack {
  Float16Lanes v;
  Pack() = default;
  LG_INLINE Pack(Float16Lanes a) : v(a) {}
  LG_INLINE Pack(float a) : v(Float16Lanes{} + a) {}
  static LG_INLINE Pack load(const float* p) { return *reinterpret_cast<const Float16Lanes*>(p); }
  LG_INLINE void store(float* p) const { *reinterpret_cast<Float16Lanes*>(p) = v; }
};

LG_INLINE Pack operator+(Pack a, Pack b) { return a.v + b.v; }
LG_INLINE Pack operator-(Pack a, Pack b) { return a.v - b.v; }
LG_INLINE Pack operator*(Pack a, Pack b) { return a.v * b.v; }
LG_INLINE Pack operator/(Pack a, Pack b) { return a.v / b.v; }
LG_INLINE Pack operator-(Pack a) { return -a.v; }
LG_INLINE MaskPack operator<(Pack a, Pack b) { return {a.v < b.v}; }
LG_INLINE MaskPack operator<=(Pack a, Pack b) { return {a.v <= b.v}; }
LG_INLINE MaskPack operator>(Pack a, Pack b) { return {a.v > b.v}; }
LG_INLINE MaskPack operator>=(Pack a, Pack b) { return {a.v >= b.v}; }
LG_INLINE MaskPack operator==(Pack a, Pack b) { return {a.v == b.v}; }
LG_INLINE IntPack operator+(IntPack a, IntPack b) { return a.v + b.v; }
LG_INLINE IntPack operator-(IntPack a, IntPack b) { return a.v - b.v; }
LG_INLINE IntPack operator&(IntPack a, IntPack b) { return a.v & b.v; }
LG_INLINE IntPack operator|(IntPack a, IntPack b) { return a.v | b.v; }
LG_INLINE IntPack operator<<(IntPack a, int n) { return a.v << n; }
// Shifts lane by lane, by 0 to 31.
LG_INLINE IntPack operator<<(IntPack a, IntPack n) { return a.v << n.v; }
// The upper 16 bits of each lane.
LG_INLINE IntPack upper_half(IntPack a) { return (a.v >> 16) & 0xffff; }
LG_INLINE IntPack min(IntPack a, IntPack b) { return a.v < b.v ? a.v : b.v; }
LG_INLINE IntPack max(IntPack a, IntPack b) { return a.v > b.v ? a.v : b.v; }
LG_INLINE MaskPack operator==(IntPack a, IntPack b) { return {a.v == b.v}; }
LG_INLINE MaskPack operator>(IntPack a, IntPack b) { return {a.v > b.v}; }
LG_INLINE MaskPack operator&(MaskPack a, MaskPack b) { return {a.v & b.v}; }
LG_INLINE MaskPack operator|(MaskPack a, MaskPack b) { return {a.v | b.v}; }
LG_INLINE MaskPack operator~(MaskPack a) { return {~a.v}; }

LG_INLINE unsigned to_bits(MaskPack a) {
  unsigned result = 0;
  for (int i = 0; i < 16; ++i) result |= static_cast<unsigned>(a.v[i] & 1) << i;
  return result;
}
LG_INLINE bool any(MaskPack a) {
  int result = 0;
  for (int i = 0; i < 16; ++i) result |= a.v[i];
  return result != 0;
}
LG_INLINE MaskPack mask_from_bits(unsigned bits) {
  const Int16Lanes lane = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  return {(lane & static_cast<int>(bits)) == lane};
}

LG_INLINE Pack select(MaskPack m, Pack a, Pack b) { return m.v ? a.v : b.v; }
LG_INLINE IntPack select(MaskPack m, IntPack a, IntPack b) { return m.v ? a.v : b.v; }
LG_INLINE Pack zero_unless(MaskPack m, Pack a) { return m.v ? a.v : Float16Lanes{}; }
// a + b where m, else a; b may be NaN where m is false.
LG_INLINE Pack add_where(MaskPack m, Pack a, Pack b) { return a.v + (m.v ? b.v : Float16Lanes{}); }
LG_INLINE Pack sqrt(Pack a) {
  Pack result;
  for (int i = 0; i < 16; ++i) result.v[i] = __builtin_sqrtf(a.v[i]);
  return result;
}
LG_INLINE Pack min(Pack a, Pack b) { return a.v < b.v ? a.v : b.v; }
LG_INLINE Pack max(Pack a, Pack b) { return a.v > b.v ? a.v : b.v; }
LG_INLINE IntPack bits(Pack a) { return reinterpret_cast<Int16Lanes>(a.v); }
LG_INLINE Pack from_bits(IntPack a) { return reinterpret_cast<Float16Lanes>(a.v); }
LG_INLINE Pack abs(Pack a) { return from_bits(bits(a).v & 0x7fffffff); }
LG_INLINE Pack fma(Pack a, Pack b, Pack c) { return a.v * b.v + c.v; }
LG_INLINE Pack fnma(Pack a, Pack b, Pack c) { return c.v - a.v * b.v; }
LG_INLINE Pack quick_inverse(Pack a) { return 1.0f / a.v; }
LG_INLINE Pack quick_inverse_sqrt(Pack a) { return 1.0f / sqrt(a).v; }
LG_INLINE IntPack truncate(Pack a) { return __builtin_convertvector(a.v, Int16Lanes); }
LG_INLINE Pack to_float(IntPack a) { return __builtin_convertvector(a.v, Float16Lanes); }

LG_INLINE Pack load_unaligned(const float* p) {
  Pack result;
  memcpy(&result.v, p, sizeof(result.v));
  return result;
}
LG_INLINE void store_unaligned(Pack a, float* p) { memcpy(p, &a.v, sizeof(a.v)); }
LG_INLINE void stream(Pack a, float* p) { a.store(p); }
// Writes base + i for each set lane i, possibly overwriting as many bytes as there are lanes; returns the number set.
LG_INLINE int store_set_lanes(MaskPack m, int base, uint8_t* to) {
  int count = 0;
  for (unsigned rest = to_bits(m); rest != 0; rest &= rest - 1) {
    to[count++] = static_cast<uint8_t>(base + __builtin_ctz(rest));
  }
  return count;
}
// Stores lanes from 0 to 255 as bytes; `to` may be unaligned.
LG_INLINE void store_bytes(IntPack a, uint8_t* to) {
  typedef uint8_t Bytes16 __attribute__((vector_size(16)));
  const Bytes16 bytes = __builtin_convertvector(a.v, Bytes16);
  memcpy(to, &bytes, sizeof(bytes));
}
LG_INLINE Pack round_whole(Pack a) { return (a + Pack(12582912.0f)) - Pack(12582912.0f); }
LG_INLINE Pack scale_power(Pack a, Pack n) { return from_bits(bits(a) + (truncate(n) << 23)); }
LG_INLINE Pack exponent_of(Pack a) { return to_float(IntPack((bits(a).v >> 23) - 127)); }
LG_INLINE Pack mantissa_of(Pack a) { return from_bits((bits(a).v & 0x007fffff) | 0x3f800000); }

LG_INLINE float sum(Pack a) {
  float result = 0.0f;
  for (int i = 0; i < 16; ++i) result += a.v[i];
  return result;
}
LG_INLINE float lowest(Pack a) {
  float result = a.v[0];
  for (int i = 1; i < 16; ++i) result = a.v[i] < result ? a.v[i] : result;
  return result;
}
// Writes the set lanes without gaps; returns their number.
LG_INLINE int store_set(MaskPack m, Pack a, float* to) {
  int count = 0;
  for (unsigned rest = to_bits(m); rest != 0; rest &= rest - 1) to[count++] = a.v[__builtin_ctz(rest)];
  return count;
}
LG_INLINE int store_set(MaskPack m, IntPack a, int* to) {
  int count = 0;
  for (unsigned rest = to_bits(m); rest != 0; rest &= rest - 1) to[count++] = a.v[__builtin_ctz(rest)];
  return count;
}

// out[k] += sum of rows[k] for k = 0..7.
LG_INLINE void add_sums_of_8(const Pack rows[8], float* out) {
  for (int k = 0; k < 8; ++k) out[k] += sum(rows[k]);
}

// out[k] += sum of rows[k] for k = 0..15.
LG_INLINE void add_sums_of_16(const Pack rows[16], float* out) {
  add_sums_of_8(rows, out);
  add_sums_of_8(rows + 8, out + 8);
}

LG_END
