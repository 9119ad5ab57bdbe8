// Conversion of f16 and bf16 to float, for single numbers and vectors.
#pragma once

#include <cstdint>

#include "common/math/number.h"

LG_BEGIN_ENGINE(training)

template <class To, class From>
LG_INLINE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "of the same size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// `a` holds the 16 bits; F is float or a vector of floats, I as many 32-bit integers.
template <class F, class I>
LG_INLINE F from_bfloat16(I a) {
  return same_bits<F>(a << 16);
}

template <class F, class I>
LG_INLINE F from_float16(I a) {
  const I magnitude = (a & 0x7fff) << 13, sign = (a & 0x8000) << 16;
  // The exponents' biases differ by 112; the exponent of infinity and NaN becomes float's largest.
  const I moved = same_bits<I>(same_bits<F>(magnitude) * 5.192296858534828e33f), special = magnitude | 0x7f800000;
  return same_bits<F>((magnitude >= 0x0f800000 ? special : moved) | sign);
}

LG_END
