// Packs in one AVX-512 register each; masks in mask registers.
#pragma once

#include <immintrin.h>

#include "common/math/number.h"

LG_BEGIN

struct MaskPack {
  __mmask16 v;
};

struct IntPack {
  __m512i v;
  IntPack() = default;
  LG_INLINE IntPack(__m512i a) : v(a) {}
  LG_INLINE IntPack(int a) : v(_mm512_set1_epi32(a)) {}
  static LG_INLINE IntPack load(const int* p) { return _mm512_load_si512(p); }
  LG_INLINE void store(int* p) const { _mm512_store_si512(p, v); }
};

struct Pack {
  __m512 v;
  Pack() = default;
  LG_INLINE Pack(__m512 a) : v(a) {}
  LG_INLINE Pack(float a) : v(_mm512_set1_ps(a)) {}
  static LG_INLINE Pack load(const float* p) { return _mm512_load_ps(p); }
  LG_INLINE void store(float* p) const { _mm512_store_ps(p, v); }
};

LG_INLINE Pack operator+(Pack a, Pack b) { return _mm512_add_ps(a.v, b.v); }
LG_INLINE Pack operator-(Pack a, Pack b) { return _mm512_sub_ps(a.v, b.v); }
LG_INLINE Pack operator*(Pack a, Pack b) { return _mm512_mul_ps(a.v, b.v); }
LG_INLINE Pack operator/(Pack a, Pack b) { return _mm512_div_ps(a.v, b.v); }
LG_INLINE Pack operator-(Pack a) { return _mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f)); }
LG_INLINE MaskPack operator<(Pack a, Pack b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
LG_INLINE MaskPack operator<=(Pack a, Pack b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
LG_INLINE MaskPack operator>(Pack a, Pack b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
LG_INLINE MaskPack operator>=(Pack a, Pack b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
LG_INLINE MaskPack operator==(Pack a, Pack b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
LG_INLINE IntPack operator+(IntPack a, IntPack b) { return _mm512_add_epi32(a.v, b.v); }
LG_INLINE IntPack operator-(IntPack a, IntPack b) { return _mm512_sub_epi32(a.v, b.v); }
LG_INLINE IntPack operator&(IntPack a, IntPack b) { return _mm512_and_si512(a.v, b.v); }
LG_INLINE IntPack operator|(IntPack a, IntPack b) { return _mm512_or_si512(a.v, b.v); }
LG_INLINE IntPack operator<<(IntPack a, int n) { return _mm512_slli_epi32(a.v, n); }
// Shifts lane by lane, by 0 to 31.
LG_INLINE IntPack operator<<(IntPack a, IntPack n) { return _mm512_sllv_epi32(a.v, n.v); }
// The upper 16 bits of each lane.
LG_INLINE IntPack upper_half(IntPack a) { return _mm512_srli_epi32(a.v, 16); }
LG_INLINE IntPack min(IntPack a, IntPack b) { return _mm512_min_epi32(a.v, b.v); }
LG_INLINE IntPack max(IntPack a, IntPack b) { return _mm512_max_epi32(a.v, b.v); }
LG_INLINE MaskPack operator==(IntPack a, IntPack b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
LG_INLINE MaskPack operator>(IntPack a, IntPack b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
LG_INLINE MaskPack operator&(MaskPack a, MaskPack b) { return {static_cast<__mmask16>(a.v & b.v)}; }
LG_INLINE MaskPack operator|(MaskPack a, MaskPack b) { return {static_cast<__mmask16>(a.v | b.v)}; }
LG_INLINE MaskPack operator~(MaskPack a) { return {static_cast<__mmask16>(~a.v)}; }

LG_INLINE bool any(MaskPack a) { return a.v != 0; }
LG_INLINE unsigned to_bits(MaskPack a) { return a.v; }
LG_INLINE MaskPack mask_from_bits(unsigned bits) { return {static_cast<__mmask16>(bits)}; }

LG_INLINE Pack select(MaskPack m, Pack a, Pack b) { return _mm512_mask_blend_ps(m.v, b.v, a.v); }
LG_INLINE IntPack select(MaskPack m, IntPack a, IntPack b) { return _mm512_mask_blend_epi32(m.v, b.v, a.v); }
LG_INLINE Pack zero_unless(MaskPack m, Pack a) { return _mm512_maskz_mov_ps(m.v, a.v); }
// a + b where m, else a; b may be NaN where m is false.
LG_INLINE Pack add_where(MaskPack m, Pack a, Pack b) { return _mm512_mask_add_ps(a.v, m.v, a.v, b.v); }
LG_INLINE Pack sqrt(Pack a) { return _mm512_sqrt_ps(a.v); }
LG_INLINE Pack min(Pack a, Pack b) { return _mm512_min_ps(a.v, b.v); }
LG_INLINE Pack max(Pack a, Pack b) { return _mm512_max_ps(a.v, b.v); }
LG_INLINE Pack abs(Pack a) { return _mm512_abs_ps(a.v); }
LG_INLINE Pack fma(Pack a, Pack b, Pack c) { return _mm512_fmadd_ps(a.v, b.v, c.v); }
LG_INLINE Pack fnma(Pack a, Pack b, Pack c) { return _mm512_fnmadd_ps(a.v, b.v, c.v); }
// An estimate refined by one step of Newton's method: it avoids the divider, the bottleneck of the formulas.
LG_INLINE Pack quick_inverse(Pack a) {
  const Pack x = _mm512_rcp14_ps(a.v);
  return fma(x, fnma(a, x, Pack(1.0f)), x);
}
LG_INLINE Pack quick_inverse_sqrt(Pack a) {
  const Pack x = _mm512_rsqrt14_ps(a.v);
  return fma(x * Pack(0.5f), fnma(a * x, x, Pack(1.0f)), x);
}
LG_INLINE IntPack bits(Pack a) { return _mm512_castps_si512(a.v); }
LG_INLINE Pack from_bits(IntPack a) { return _mm512_castsi512_ps(a.v); }
LG_INLINE IntPack truncate(Pack a) { return _mm512_cvttps_epi32(a.v); }
LG_INLINE Pack to_float(IntPack a) { return _mm512_cvtepi32_ps(a.v); }
LG_INLINE Pack load_unaligned(const float* p) { return _mm512_loadu_ps(p); }
LG_INLINE void store_unaligned(Pack a, float* p) { _mm512_storeu_ps(p, a.v); }
// Stores past the cache, to an aligned address.
LG_INLINE void stream(Pack a, float* p) { _mm512_stream_ps(p, a.v); }
// Writes base + i for each set lane i, possibly overwriting as many bytes as there are lanes; returns the number set.
LG_INLINE int store_set_lanes(MaskPack m, int base, uint8_t* to) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(base));
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(m.v, numbers));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  return __builtin_popcount(m.v);
}
// Stores lanes from 0 to 255 as bytes; `to` may be unaligned.
LG_INLINE void store_bytes(IntPack a, uint8_t* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a.v));
}
LG_INLINE Pack round_whole(Pack a) { return _mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LG_INLINE Pack scale_power(Pack a, Pack n) { return _mm512_scalef_ps(a.v, n.v); }
LG_INLINE Pack exponent_of(Pack a) { return _mm512_getexp_ps(a.v); }
LG_INLINE Pack mantissa_of(Pack a) { return _mm512_getmant_ps(a.v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src); }
LG_INLINE float sum(Pack a) { return _mm512_reduce_add_ps(a.v); }
LG_INLINE float lowest(Pack a) { return _mm512_reduce_min_ps(a.v); }
// Writes the set lanes without gaps, possibly overwriting a whole pack; returns their number.
LG_INLINE int store_set(MaskPack m, Pack a, float* to) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(m.v, a.v));
  return __builtin_popcount(m.v);
}
LG_INLINE int store_set(MaskPack m, IntPack a, int* to) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(m.v, a.v));
  return __builtin_popcount(m.v);
}

// out[k] += sum of rows[k] for k = 0..7.
LG_INLINE void add_sums_of_8(const Pack rows[8], float* out) {
  __m256 half[8];
  for (int k = 0; k < 8; ++k) {
    half[k] = _mm256_add_ps(_mm512_castps512_ps256(rows[k].v), _mm512_extractf32x8_ps(rows[k].v, 1));
  }
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(half[4], half[5]), _mm256_hadd_ps(half[6], half[7]));
  const __m256 low = _mm256_permute2f128_ps(a, b, 0x20);
  const __m256 high = _mm256_permute2f128_ps(a, b, 0x31);
  _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_add_ps(low, high)));
}

// out[k] += sum of rows[k] for k = 0..15; `out` is aligned.
LG_INLINE void add_sums_of_16(const Pack rows[16], float* out) {
  // Sums over the quarters of four packs: quarter k of the result holds the partial sums of pack k.
  const auto fold = [](__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  };
  const __m512 a = fold(rows[0].v, rows[4].v, rows[8].v, rows[12].v);
  const __m512 b = fold(rows[1].v, rows[5].v, rows[9].v, rows[13].v);
  const __m512 c = fold(rows[2].v, rows[6].v, rows[10].v, rows[14].v);
  const __m512 d = fold(rows[3].v, rows[7].v, rows[11].v, rows[15].v);
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 sums =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  _mm512_store_ps(out, _mm512_add_ps(_mm512_load_ps(out), sums));
}

LG_END
