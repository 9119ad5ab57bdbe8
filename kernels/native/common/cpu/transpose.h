// Transposition between an array of structures and packs: 16 rows of floats to one pack per column, and back.
#pragma once

#include "common/cpu/pack.h"

LG_BEGIN

#if defined(LUMIGRAD_ISA_avx512)
// Transposes in place: r[i] lane j <-> r[j] lane i.
LG_INLINE void transpose_16(Pack r[kLanes]) {
  __m512 a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_ps(r[2 * i].v, r[2 * i + 1].v);
    a[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i].v, r[2 * i + 1].v);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512d low = _mm512_castps_pd(a[4 * i + h]), high = _mm512_castps_pd(a[4 * i + 2 + h]);
      b[4 * i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      b[4 * i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  // b[4 i + k] holds column k of each quarter for rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512 low02 = _mm512_shuffle_f32x4(b[k], b[4 + k], 0x88), low13 = _mm512_shuffle_f32x4(b[k], b[4 + k], 0xdd);
    const __m512 high02 = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0x88);
    const __m512 high13 = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0xdd);
    r[k].v = _mm512_shuffle_f32x4(low02, high02, 0x88);
    r[8 + k].v = _mm512_shuffle_f32x4(low02, high02, 0xdd);
    r[4 + k].v = _mm512_shuffle_f32x4(low13, high13, 0x88);
    r[12 + k].v = _mm512_shuffle_f32x4(low13, high13, 0xdd);
  }
}
// rows[i][k] += sums[k] lane i for k = 0..7, row by row: the same row may occur several times.
LG_INLINE void add_to_rows_of_8(const Pack sums[8], float* const rows[kLanes]) {
  __m512d q[2][4];
  // Quarter j of q[h][k] holds columns 4 h to 4 h + 3 of row 4 j + k.
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const Pack* s = sums + 4 * h;
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(s[0].v, s[1].v));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(s[0].v, s[1].v));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(s[2].v, s[3].v));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(s[2].v, s[3].v));
    q[h][0] = _mm512_unpacklo_pd(low01, low23);
    q[h][1] = _mm512_unpackhi_pd(low01, low23);
    q[h][2] = _mm512_unpacklo_pd(high01, high23);
    q[h][3] = _mm512_unpackhi_pd(high01, high23);
  }
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const auto add = [](float* row, __m256d values) {
    _mm256_storeu_ps(row, _mm256_add_ps(_mm256_loadu_ps(row), _mm256_castpd_ps(values)));
  };
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512d low = _mm512_permutex2var_pd(q[0][k], first, q[1][k]);
    const __m512d high = _mm512_permutex2var_pd(q[0][k], last, q[1][k]);
    add(rows[k], _mm512_castpd512_pd256(low));
    add(rows[4 + k], _mm512_extractf64x4_pd(low, 1));
    add(rows[8 + k], _mm512_castpd512_pd256(high));
    add(rows[12 + k], _mm512_extractf64x4_pd(high, 1));
  }
}
#elif defined(LUMIGRAD_ISA_avx2)
// Transposes in place: r[i] lane j <-> r[j] lane i.
LG_INLINE void transpose_8(__m256 r[8]) {
  __m256d a[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_castps_pd(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]));
    a[2 * i + 1] = _mm256_castps_pd(_mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
  }
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256 upper[2] = {_mm256_castpd_ps(_mm256_unpacklo_pd(a[h], a[2 + h])),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(a[h], a[2 + h]))};
    const __m256 lower[2] = {_mm256_castpd_ps(_mm256_unpacklo_pd(a[4 + h], a[6 + h])),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(a[4 + h], a[6 + h]))};
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      r[2 * h + k] = _mm256_permute2f128_ps(upper[k], lower[k], 0x20);
      r[4 + 2 * h + k] = _mm256_permute2f128_ps(upper[k], lower[k], 0x31);
    }
  }
}
LG_INLINE void transpose_16(Pack r[kLanes]) {
  __m256 quarters[2][2][8];  // By half of the rows, then half of the columns.
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    quarters[0][0][i] = r[i].a;
    quarters[0][1][i] = r[i].b;
    quarters[1][0][i] = r[8 + i].a;
    quarters[1][1][i] = r[8 + i].b;
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    transpose_8(quarters[0][half]);
    transpose_8(quarters[1][half]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[8 * half + i] = {quarters[0][half][i], quarters[1][half][i]};
  }
}
LG_INLINE void add_to_rows_of_8(const Pack sums[8], float* const rows[kLanes]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256 r[8];
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) r[k] = half == 0 ? sums[k].a : sums[k].b;
    transpose_8(r);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      float* row = rows[8 * half + i];
      _mm256_storeu_ps(row, _mm256_add_ps(_mm256_loadu_ps(row), r[i]));
    }
  }
}
#else
LG_INLINE void transpose_16(Pack r[kLanes]) {
  alignas(64) float in[kLanes][kLanes], out[kLanes][kLanes];
  for (int i = 0; i < kLanes; ++i) r[i].store(in[i]);
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) out[j][i] = in[i][j];
  }
  for (int i = 0; i < kLanes; ++i) r[i] = Pack::load(out[i]);
}
LG_INLINE void add_to_rows_of_8(const Pack sums[8], float* const rows[kLanes]) {
  alignas(64) float columns[8][kLanes];
  for (int k = 0; k < 8; ++k) sums[k].store(columns[k]);
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 8; ++k) rows[i][k] += columns[k][i];
  }
}
#endif

// rows[i][f] = columns[f] lane i for the first `used` rows. If `streaming`, stores bypass the cache: rows must then be
// 64-byte aligned, and count a multiple of 16.
inline void scatter_columns(const float* columns, int count, float* const rows[kLanes], int used, bool streaming) {
  int first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    Pack r[kLanes];
    for (int i = 0; i < kLanes; ++i) r[i] = Pack::load(columns + (first + i) * kLanes);
    transpose_16(r);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < used && streaming) stream(r[i], rows[i] + first);
      if (i < used && !streaming) store_unaligned(r[i], rows[i] + first);
    }
  }
  for (; first < count; ++first) {
    for (int i = 0; i < used; ++i) rows[i][first] = columns[first * kLanes + i];
  }
}

// Converts packs to and from 16 pairs, triples and quadruples, which may be unaligned.
#if defined(LUMIGRAD_ISA_avx512)
LG_INLINE void interleave_3(Pack a, Pack b, Pack c, float* to) {
  // Indices 0 to 15 are lanes of a, then of b; the lanes of c are filled in second.
  const __m512i ab0 = _mm512_setr_epi32(0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5);
  const __m512i ab1 = _mm512_setr_epi32(21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26);
  const __m512i ab2 = _mm512_setr_epi32(0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0);
  const __m512i c0 = _mm512_setr_epi32(0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0);
  const __m512i c1 = _mm512_setr_epi32(0, 5, 0, 0, 6, 0, 0, 7, 0, 0, 8, 0, 0, 9, 0, 0);
  const __m512i c2 = _mm512_setr_epi32(10, 0, 0, 11, 0, 0, 12, 0, 0, 13, 0, 0, 14, 0, 0, 15);
  const __m512 low = _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(a.v, ab0, b.v), 0x4924, c0, c.v);
  const __m512 mid = _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(a.v, ab1, b.v), 0x2492, c1, c.v);
  const __m512 high = _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(a.v, ab2, b.v), 0x9249, c2, c.v);
  _mm512_storeu_ps(to, low);
  _mm512_storeu_ps(to + 16, mid);
  _mm512_storeu_ps(to + 32, high);
}
LG_INLINE void deinterleave_3(const float* from, Pack& a, Pack& b, Pack& c) {
  const __m512 low = _mm512_loadu_ps(from), mid = _mm512_loadu_ps(from + 16), high = _mm512_loadu_ps(from + 32);
  // Triples 0 to 10 lie in the first two packs, the others in the last two.
  const __m512i a0 = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0);
  const __m512i a1 = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4, 7, 10, 13);
  const __m512i b0 = _mm512_setr_epi32(1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0);
  const __m512i b1 = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 5, 8, 11, 14);
  const __m512i c0 = _mm512_setr_epi32(2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0);
  const __m512i c1 = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 6, 9, 12, 15);
  a.v = _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(low, a0, mid), 0xf800, a1, high);
  b.v = _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(low, b0, mid), 0xf800, b1, high);
  c.v = _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(low, c0, mid), 0xfc00, c1, high);
}
LG_INLINE void deinterleave_4(const float* from, Pack& a, Pack& b, Pack& c, Pack& d) {
  const __m512i ab = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i cd = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
  const __m512 r0 = _mm512_loadu_ps(from), r1 = _mm512_loadu_ps(from + 16);
  const __m512 r2 = _mm512_loadu_ps(from + 32), r3 = _mm512_loadu_ps(from + 48);
  // Halves of two packs: the first eight quadruples, and the last eight.
  const __m512 ab0 = _mm512_permutex2var_ps(r0, ab, r1), ab1 = _mm512_permutex2var_ps(r2, ab, r3);
  const __m512 cd0 = _mm512_permutex2var_ps(r0, cd, r1), cd1 = _mm512_permutex2var_ps(r2, cd, r3);
  a.v = _mm512_shuffle_f32x4(ab0, ab1, 0x44);
  b.v = _mm512_shuffle_f32x4(ab0, ab1, 0xee);
  c.v = _mm512_shuffle_f32x4(cd0, cd1, 0x44);
  d.v = _mm512_shuffle_f32x4(cd0, cd1, 0xee);
}
LG_INLINE void interleave_4(Pack a, Pack b, Pack c, Pack d, float* to) {
  // Four quadruples of lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15 in turn.
  const __m512d ab0 = _mm512_castps_pd(_mm512_unpacklo_ps(a.v, b.v)),
                ab1 = _mm512_castps_pd(_mm512_unpackhi_ps(a.v, b.v));
  const __m512d cd0 = _mm512_castps_pd(_mm512_unpacklo_ps(c.v, d.v)),
                cd1 = _mm512_castps_pd(_mm512_unpackhi_ps(c.v, d.v));
  const __m512 q0 = _mm512_castpd_ps(_mm512_unpacklo_pd(ab0, cd0)), q1 = _mm512_castpd_ps(_mm512_unpackhi_pd(ab0, cd0));
  const __m512 q2 = _mm512_castpd_ps(_mm512_unpacklo_pd(ab1, cd1)), q3 = _mm512_castpd_ps(_mm512_unpackhi_pd(ab1, cd1));
  // Quarter j of q[k] is quadruple 4 j + k.
  const __m512 low01 = _mm512_shuffle_f32x4(q0, q1, 0x44), low23 = _mm512_shuffle_f32x4(q2, q3, 0x44);
  const __m512 high01 = _mm512_shuffle_f32x4(q0, q1, 0xee), high23 = _mm512_shuffle_f32x4(q2, q3, 0xee);
  _mm512_storeu_ps(to, _mm512_shuffle_f32x4(low01, low23, 0x88));
  _mm512_storeu_ps(to + 16, _mm512_shuffle_f32x4(low01, low23, 0xdd));
  _mm512_storeu_ps(to + 32, _mm512_shuffle_f32x4(high01, high23, 0x88));
  _mm512_storeu_ps(to + 48, _mm512_shuffle_f32x4(high01, high23, 0xdd));
}
LG_INLINE void interleave_2(Pack a, Pack b, float* to) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(a.v, low, b.v));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(a.v, high, b.v));
}
#else
LG_INLINE void interleave_3(Pack a, Pack b, Pack c, float* to) {
  alignas(64) float lanes[3][kLanes];
  a.store(lanes[0]);
  b.store(lanes[1]);
  c.store(lanes[2]);
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 3; ++k) to[3 * i + k] = lanes[k][i];
  }
}
LG_INLINE void deinterleave_3(const float* from, Pack& a, Pack& b, Pack& c) {
  alignas(64) float lanes[3][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 3; ++k) lanes[k][i] = from[3 * i + k];
  }
  a = Pack::load(lanes[0]);
  b = Pack::load(lanes[1]);
  c = Pack::load(lanes[2]);
}
LG_INLINE void deinterleave_4(const float* from, Pack& a, Pack& b, Pack& c, Pack& d) {
  alignas(64) float lanes[4][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 4; ++k) lanes[k][i] = from[4 * i + k];
  }
  a = Pack::load(lanes[0]);
  b = Pack::load(lanes[1]);
  c = Pack::load(lanes[2]);
  d = Pack::load(lanes[3]);
}
LG_INLINE void interleave_4(Pack a, Pack b, Pack c, Pack d, float* to) {
  alignas(64) float lanes[4][kLanes];
  a.store(lanes[0]);
  b.store(lanes[1]);
  c.store(lanes[2]);
  d.store(lanes[3]);
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 4; ++k) to[4 * i + k] = lanes[k][i];
  }
}
LG_INLINE void interleave_2(Pack a, Pack b, float* to) {
  alignas(64) float lanes[2][kLanes];
  a.store(lanes[0]);
  b.store(lanes[1]);
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 2; ++k) to[2 * i + k] = lanes[k][i];
  }
}
#endif

LG_END
