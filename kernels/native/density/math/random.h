// Random words and normal numbers for rows. They depend only on seed, stream, step and row, and so are the same for
// every thread, machine and device.
#pragma once

#include "common/math/number.h"
#include "density/params.h"

LG_BEGIN_ENGINE(density)

// Philox4x32-10, a bijection of 128-bit counters for each 64-bit key (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011).
struct Words {
  uint32_t a, b, c, d;
};

LG_INLINE Words philox_round(const Words& w, uint32_t key0, uint32_t key1) {
  const uint64_t first = uint64_t{0xD2511F53u} * w.a, second = uint64_t{0xCD9E8D57u} * w.c;
  return {static_cast<uint32_t>(second >> 32) ^ w.b ^ key0, static_cast<uint32_t>(second),
          static_cast<uint32_t>(first >> 32) ^ w.d ^ key1, static_cast<uint32_t>(first)};
}

LG_INLINE Words philox(Words w, uint32_t key0, uint32_t key1) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#elif !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    w = philox_round(w, key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return w;
}

LG_INLINE Words words_of(const Draw& draw, uint32_t row) {
  return philox({row, draw.stream, static_cast<uint32_t>(draw.step), static_cast<uint32_t>(draw.step >> 32)},
                static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32));
}

// Uniform in (0, 1], for the radius of a normal; never 0, which has no logarithm.
LG_INLINE float unit_of(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 1 | 1u)) * 0x1p-31f; }
// Uniform in [-1, 1], half turns, for the angle of a normal.
LG_INLINE float turn_of(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word)) * 0x1p-31f; }

// Normal numbers from uniform numbers: the Box-Muller transform, without fused operations or library functions, so that
// every machine gets the same bits. Templates on the number type. Absolute error below 1e-6; the largest is 6.6.

// The natural logarithm of u in [2^-31, 1].
template <class F>
LG_INLINE F log_unit(F u) {
  const F m = mantissa_of(u);
  // Reduces to [1/sqrt 2, sqrt 2), where the series of the inverse hyperbolic tangent is short.
  const auto upper = m > F(1.41421356f);
  const F reduced = select(upper, m * F(0.5f), m);
  const F n = exponent_of(u) + select(upper, F(1.0f), F(0.0f));
  const F s = (reduced - F(1.0f)) / (reduced + F(1.0f)), z = s * s;
  F p = F(2.0f / 9.0f);
  p = p * z + F(2.0f / 7.0f);
  p = p * z + F(2.0f / 5.0f);
  p = p * z + F(2.0f / 3.0f);
  return n * F(0.693145752f) + (F(2.0f) * s + (s * z * p + n * F(1.42860677e-6f)));
}

template <class F>
struct NormalPair {
  F first, second;
};

// Two independent normals from u in (0, 1] and t in [-1, 1], half turns.
template <class F>
LG_INLINE NormalPair<F> normal_pair(F u, F t) {
  const F radius = sqrt(F(-2.0f) * log_unit(u));
  // Quarter turns, and the remainder in half turns, in [-1/4, 1/4].
  const F quarters = round_whole(F(2.0f) * t), r = t - F(0.5f) * quarters, z = r * r;
  F s = F(0.0821458866f);
  s = s * z + F(-0.599264529f);
  s = s * z + F(2.55016404f);
  s = s * z + F(-5.16771278f);
  s = r * (s * z + F(3.14159265f));
  F c = F(-0.0258068913f);
  c = c * z + F(0.235330630f);
  c = c * z + F(-1.33526277f);
  c = c * z + F(4.05871213f);
  c = c * z + F(-4.93480220f);
  c = c * z + F(1.0f);
  // Sine and cosine are swapped after an odd number of quarter turns.
  const F size = abs(quarters), sign = F(1.0f) - size;
  const auto odd = size == F(1.0f);
  const F cosine = select(odd, -(quarters * s), sign * c), sine = select(odd, quarters * c, sign * s);
  return {radius * cosine, radius * sine};
}

LG_END
