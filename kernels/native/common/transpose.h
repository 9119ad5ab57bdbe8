// Between an array of structures and packs: 16 rows of floats to one pack per column, and back.
#pragma once

#include "common/pack.h"

LG_BEGIN

#if defined(LUMIGRAD_ISA_avx512)
// In place: r[i] lane j <-> r[j] lane i.
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
#else
LG_INLINE void transpose_16(Pack r[kLanes]) {
  alignas(64) float in[kLanes][kLanes], out[kLanes][kLanes];
  for (int i = 0; i < kLanes; ++i) r[i].store(in[i]);
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) out[j][i] = in[i][j];
  }
  for (int i = 0; i < kLanes; ++i) r[i] = Pack::load(out[i]);
}
#endif

// columns[f] lane i = rows[i][f] for f = 0 .. count - 1; `columns` has room for a whole number of 16s, aligned.
inline void gather_columns(const float* const rows[kLanes], int count, float* columns) {
  int first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    Pack r[kLanes];
    for (int i = 0; i < kLanes; ++i) r[i] = load_unaligned(rows[i] + first);
    transpose_16(r);
    for (int i = 0; i < kLanes; ++i) r[i].store(columns + (first + i) * kLanes);
  }
  for (; first < count; ++first) {
    for (int i = 0; i < kLanes; ++i) columns[first * kLanes + i] = rows[i][first];
  }
}

// rows[i][f] = columns[f] lane i for the first `used` rows. Written past the cache where `streaming`: rows are then
// 64-byte aligned and count is a multiple of 16.
inline void scatter_columns(const float* columns, int count, float* const rows[kLanes], int used, bool streaming) {
  int first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    Pack r[kLanes];
    for (int i = 0; i < kLanes; ++i) r[i] = Pack::load(columns + (first + i) * kLanes);
    transpose_16(r);
    alignas(64) float out[kLanes][kLanes];
    for (int i = 0; i < kLanes; ++i) r[i].store(out[i]);
    for (int i = 0; i < used; ++i) {
      if (streaming) {
        stream(Pack::load(out[i]), rows[i] + first);
      } else {
        store_unaligned(Pack::load(out[i]), rows[i] + first);
      }
    }
  }
  for (; first < count; ++first) {
    for (int i = 0; i < used; ++i) rows[i][first] = columns[first * kLanes + i];
  }
}

LG_END
