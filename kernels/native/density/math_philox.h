// Random words: Philox4x32-10, a bijection of 128-bit counters for each 64-bit key (Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Words follow from seed, stream, step and row alone: every
// thread, machine and device gets the same.
#pragma once

#include "common/number.h"
#include "density/params.h"

LG_BEGIN_ENGINE(density)

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

// In (0, 1], for the radius of a normal: never 0, of which there is no logarithm.
LG_INLINE float unit_of(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 1 | 1u)) * 0x1p-31f; }
// In [-1, 1], half turns, for its angle.
LG_INLINE float turn_of(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word)) * 0x1p-31f; }

LG_END
