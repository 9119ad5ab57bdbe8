// Samples rows in proportion to their opacities. Weights are integers, so that their sums do not depend on the order of
// summation, and every machine samples the same rows with any number of threads.
#pragma once

#include "common/math/exp.h"
#include "density/math/random.h"

LG_BEGIN_ENGINE(density)

// The weight of a row: its opacity in units of 2^-32, at least 1, if its logit is above `minimum`; 0 otherwise,
// including for NaN.
LG_INLINE uint64_t weight_of(float logit, float minimum) {
  const double opacity = 1.0 / (1.0 + exp64(-static_cast<double>(logit)));
  // Rounds to a whole number in the last bits.
  const auto rounded = static_cast<uint64_t>(bits64(opacity * 0x1p32 + 0x1p52)) & ((uint64_t{1} << 52) - 1);
  const uint64_t weight = rounded > 0 ? rounded : 1;
  return logit > minimum ? weight : 0;
}

// The upper half of the product of 64-bit numbers.
LG_INLINE uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// The row of draw `number`. A row's weight is the difference between its entry in `sums` and the next; at least one
// weight must be above 0.
LG_INLINE int32_t row_of_draw(const uint64_t* sums, int32_t count, const Draw& draw, uint32_t number) {
  const Words words = words_of(draw, number);
  const uint64_t target = multiply_high(uint64_t{words.b} << 32 | words.a, sums[count]);
  // Finds the last row whose sum is not beyond the target.
  int32_t row = 0;
  for (int32_t left = count; left > 1;) {
    const int32_t half = left / 2;
    row += sums[row + half] <= target ? half : 0;
    left -= half;
  }
  return row;
}

LG_END
