// Packs in two AVX2 registers each; masks are full-width.
#pragma once

#include <immintrin.h>

#include "common/math/number.h"

LG_BEGIN

struct MaskPack {
  __m256 a, b;
};

struct IntPack {
  __m256i a, b;
  IntPack() = default;
  LG_INLINE IntPack(__m256i x, __m256i y) : a(x), b(y) {}
  LG_INLINE IntPack(int x) : a(_mm256_set1_epi32(x)), b(_mm256_set1_epi32(x)) {}
  static LG_INLINE IntPack load(const int* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  LG_INLINE void store(int* p) const {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), a);
    _mm256_store_si256(reinterpret_cast<__m256i*>(p + 8), b);
  }
};

struct Pack {
  __m256 a, b;
  Pack() = default;
  LG_INLINE Pack(__m256 x, __m256 y) : a(x), b(y) {}
  LG_INLINE Pack(float x) : a(_mm256_set1_ps(x)), b(_mm256_set1_ps(x)) {}
  static LG_INLINE Pack load(const float* p) { return {_mm256_load_ps(p), _mm256_load_ps(p + 8)}; }
  LG_INLINE void store(float* p) const {
    _mm256_store_ps(p, a);
    _mm256_store_ps(p + 8, b);
  }
};

LG_INLINE Pack operator+(Pack x, Pack y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LG_INLINE Pack operator-(Pack x, Pack y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LG_INLINE Pack operator*(Pack x, Pack y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LG_INLINE Pack operator/(Pack x, Pack y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LG_INLINE Pack operator-(Pack x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}
LG_INLINE MaskPack operator<(Pack x, Pack y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
LG_INLINE MaskPack operator<=(Pack x, Pack y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
LG_INLINE MaskPack operator>(Pack x, Pack y) { return y < x; }
LG_INLINE MaskPack operator>=(Pack x, Pack y) { return y <= x; }
LG_INLINE MaskPack operator==(Pack x, Pack y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
LG_INLINE IntPack operator+(IntPack x, IntPack y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
LG_INLINE IntPack operator-(IntPack x, IntPack y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
LG_INLINE IntPack operator&(IntPack x, IntPack y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LG_INLINE IntPack operator|(IntPack x, IntPack y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
// Shifts lane by lane, by 0 to 31.
LG_INLINE IntPack operator<<(IntPack x, IntPack n) {
  return {_mm256_sllv_epi32(x.a, n.a), _mm256_sllv_epi32(x.b, n.b)};
}
// The upper 16 bits of each lane.
LG_INLINE IntPack upper_half(IntPack x) { return {_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16)}; }
LG_INLINE IntPack min(IntPack x, IntPack y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
LG_INLINE IntPack max(IntPack x, IntPack y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
LG_INLINE IntPack operator<<(IntPack x, int n) { return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
LG_INLINE MaskPack operator==(IntPack x, IntPack y) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)), _mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))};
}
LG_INLINE MaskPack operator>(IntPack x, IntPack y) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(x.a, y.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(x.b, y.b))};
}
LG_INLINE MaskPack operator&(MaskPack x, MaskPack y) { return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)}; }
LG_INLINE MaskPack operator|(MaskPack x, MaskPack y) { return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)}; }
LG_INLINE MaskPack operator~(MaskPack x) {
  const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  return {_mm256_xor_ps(x.a, ones), _mm256_xor_ps(x.b, ones)};
}

LG_INLINE unsigned to_bits(MaskPack x) {
  return static_cast<unsigned>(_mm256_movemask_ps(x.a)) | (static_cast<unsigned>(_mm256_movemask_ps(x.b)) << 8);
}
LG_INLINE bool any(MaskPack x) { return _mm256_movemask_ps(_mm256_or_ps(x.a, x.b)) != 0; }
LG_INLINE MaskPack mask_from_bits(unsigned bits) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i high = _mm256_slli_epi32(low, 8);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, low), low)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, high), high))};
}

LG_INLINE Pack select(MaskPack m, Pack x, Pack y) {
  return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
LG_INLINE IntPack select(MaskPack m, IntPack x, IntPack y) {
  return {_mm256_blendv_epi8(y.a, x.a, _mm256_castps_si256(m.a)),
          _mm256_blendv_epi8(y.b, x.b, _mm256_castps_si256(m.b))};
}
LG_INLINE Pack zero_unless(MaskPack m, Pack x) { return {_mm256_and_ps(m.a, x.a), _mm256_and_ps(m.b, x.b)}; }
// a + b where m, else a; b may be NaN where m is false.
LG_INLINE Pack add_where(MaskPack m, Pack a, Pack b) {
  return {_mm256_add_ps(a.a, _mm256_and_ps(m.a, b.a)), _mm256_add_ps(a.b, _mm256_and_ps(m.b, b.b))};
}
LG_INLINE Pack sqrt(Pack x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
LG_INLINE Pack min(Pack x, Pack y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LG_INLINE Pack max(Pack x, Pack y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LG_INLINE Pack abs(Pack x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
LG_INLINE Pack fma(Pack x, Pack y, Pack z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
LG_INLINE Pack fnma(Pack x, Pack y, Pack z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
// An estimate refined by one step of Newton's method: it avoids the divider, the bottleneck of the formulas.
LG_INLINE Pack quick_inverse(Pack a) {
  const Pack x = {_mm256_rcp_ps(a.a), _mm256_rcp_ps(a.b)};
  return fma(x, fnma(a, x, Pack(1.0f)), x);
}
LG_INLINE Pack quick_inverse_sqrt(Pack a) {
  const Pack x = {_mm256_rsqrt_ps(a.a), _mm256_rsqrt_ps(a.b)};
  return fma(x * Pack(0.5f), fnma(a * x, x, Pack(1.0f)), x);
}
LG_INLINE IntPack bits(Pack x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LG_INLINE Pack from_bits(IntPack x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LG_INLINE IntPack truncate(Pack x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
LG_INLINE Pack to_float(IntPack x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

LG_INLINE Pack load_unaligned(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LG_INLINE void store_unaligned(Pack x, float* p) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
// Stores past the cache, to an aligned address.
LG_INLINE void stream(Pack x, float* p) {
  _mm256_stream_ps(p, x.a);
  _mm256_stream_ps(p + 8, x.b);
}
// Writes base + i for each set lane i, possibly overwriting as many bytes as there are lanes; returns the number set.
LG_INLINE int store_set_lanes(MaskPack m, int base, uint8_t* to) {
  int count = 0;
  for (unsigned rest = to_bits(m); rest != 0; rest &= rest - 1) {
    to[count++] = static_cast<uint8_t>(base + __builtin_ctz(rest));
  }
  return count;
}
// Stores lanes from 0 to 255 as bytes; `to` may be unaligned.
LG_INLINE void store_bytes(IntPack x, uint8_t* to) {
  // Packing interleaves the halves of the registers.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
LG_INLINE Pack round_whole(Pack x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
LG_INLINE Pack scale_power(Pack x, Pack n) { return from_bits(bits(x) + (truncate(n) << 23)); }
LG_INLINE Pack exponent_of(Pack x) {
  const IntPack n = bits(x);
  return to_float(IntPack(_mm256_srli_epi32(n.a, 23), _mm256_srli_epi32(n.b, 23))) - Pack(127.0f);
}
LG_INLINE Pack mantissa_of(Pack x) {
  const __m256 digits = _mm256_castsi256_ps(_mm256_set1_epi32(0x007fffff)), one = _mm256_set1_ps(1.0f);
  return {_mm256_or_ps(_mm256_and_ps(x.a, digits), one), _mm256_or_ps(_mm256_and_ps(x.b, digits), one)};
}

LG_INLINE float sum(Pack x) {
  const __m256 h = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
LG_INLINE float lowest(Pack x) {
  const __m256 h = _mm256_min_ps(x.a, x.b);
  __m128 q = _mm_min_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_min_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_min_ss(q, _mm_shuffle_ps(q, q, 1)));
}
// The numbers of the set bits, in the first lanes.
LG_INLINE __m256i numbers_of_set(unsigned bits) {
  const uint64_t bytes = _pdep_u64(bits, 0x0101010101010101u) * 0xff;
  const uint64_t numbers = _pext_u64(0x0706050403020100u, bytes);
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(numbers)));
}
// Writes the set lanes without gaps, possibly overwriting a whole pack; returns their number.
LG_INLINE int store_set(MaskPack m, IntPack x, int* to) {
  const unsigned low = static_cast<unsigned>(_mm256_movemask_ps(m.a)), high = to_bits(m) >> 8;
  const int count = __builtin_popcount(low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(x.a, numbers_of_set(low)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + count), _mm256_permutevar8x32_epi32(x.b, numbers_of_set(high)));
  return count + __builtin_popcount(high);
}
LG_INLINE int store_set(MaskPack m, Pack x, float* to) { return store_set(m, bits(x), reinterpret_cast<int*>(to)); }

// out[k] += sum of rows[k] for k = 0..7.
LG_INLINE void add_sums_of_8(const Pack rows[8], float* out) {
  __m256 half[8];
  for (int k = 0; k < 8; ++k) half[k] = _mm256_add_ps(rows[k].a, rows[k].b);
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(half[4], half[5]), _mm256_hadd_ps(half[6], half[7]));
  const __m256 low = _mm256_permute2f128_ps(a, b, 0x20);
  const __m256 high = _mm256_permute2f128_ps(a, b, 0x31);
  _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_add_ps(low, high)));
}

// out[k] += sum of rows[k] for k = 0..15.
LG_INLINE void add_sums_of_16(const Pack rows[16], float* out) {
  add_sums_of_8(rows, out);
  add_sums_of_8(rows + 8, out + 8);
}

LG_END
