// The numbers of a block of threads that steps rows of a parameter: each thread takes four at a time.
#pragma once

#include <cstdint>

#include "training/params.h"

namespace lumigrad::training {

constexpr int kThreads = 192;
constexpr int kFour = 4;   // Numbers that a thread takes at a time.
constexpr int kFours = 2;  // Fours of a thread that it loads at once.
// Numbers of a block, more only if it has a single row. Rows of 1, 3, 4, 12 and 48 numbers fill it.
constexpr int kNumbers = kThreads * kFour * kFours;

// A multiple of four rows, if they fit, so that each block begins at a multiple of four numbers.
__host__ __device__ inline int64_t rows_of_block(const AdamGroup& group) {
  const int64_t rows = group.width < kNumbers ? kNumbers / group.width : 1;
  return rows < kFour ? rows : rows - rows % kFour;
}

// The row of number i of a block is i * inverse >> kInverseBits, without a division. A block of one row has the inverse
// 0; otherwise two rows have kNumbers numbers at most, for which the product is near enough to i / width.
constexpr int kInverseBits = 21;
static_assert(kNumbers * (kNumbers / 2) < 1 << kInverseBits && kNumbers < 1 << (32 - kInverseBits));

inline unsigned inverse_width(const AdamGroup& group) {
  return rows_of_block(group) == 1 ? 0u : static_cast<unsigned>(((1 << kInverseBits) + group.width - 1) / group.width);
}

// A block's part of its group: whole rows.
struct Rows {
  const AdamGroup& group;
  unsigned inverse;
  bool aligned;
  int64_t row;  // The first.
  int count, numbers;

  __device__ bool seen(int r) const { return group.rows == nullptr || group.rows[row + r] != 0; }
};

// The place of four numbers in a block: `count` numbers from `at` on, the first in `row` of the block at `column`.
// kWide: whether it is known that there are four numbers that can be read at once, or none.
template <bool kWide>
struct Four {
  int64_t at;
  int row, column, count;
  bool wide;

  __device__ Four(const Rows& rows, int i)
      : at(rows.row * rows.group.width + i),
        row(static_cast<int>(static_cast<unsigned>(i) * rows.inverse >> kInverseBits)),
        column(i - row * rows.group.width),
        count(kWide ? kFour : ::min(kFour, rows.numbers - i)),
        wide(kWide || (rows.aligned && count == kFour)) {}

  // Calls body(k, row, column) for each number.
  template <class Body>
  __device__ void each(const AdamGroup& group, const Body& body) const {
    int r = row, c = column;
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if (k < count) body(k, r, c);
      if (++c == group.width) {
        c = 0;
        ++r;
      }
    }
  }
};

template <bool kWide>
__device__ inline void load(const float* from, const Four<kWide>& four, float (&to)[kFour]) {
  if (four.wide) {
    const float4 all = *reinterpret_cast<const float4*>(from + four.at);
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
  } else {
#pragma unroll
    for (int k = 0; k < kFour; ++k) to[k] = k < four.count ? from[four.at + k] : 0.0f;
  }
}

template <bool kWide>
__device__ inline void load(const uint16_t* from, const Four<kWide>& four, int (&to)[kFour]) {
  if (four.wide) {
    const uint2 all = *reinterpret_cast<const uint2*>(from + four.at);
    to[0] = static_cast<int>(all.x & 0xFFFFu), to[1] = static_cast<int>(all.x >> 16);
    to[2] = static_cast<int>(all.y & 0xFFFFu), to[3] = static_cast<int>(all.y >> 16);
  } else {
#pragma unroll
    for (int k = 0; k < kFour; ++k) to[k] = k < four.count ? from[four.at + k] : 0;
  }
}

// Stores the numbers k for which `on` has bit k.
template <bool kWide>
__device__ inline void store(float* to, const Four<kWide>& four, const float (&from)[kFour], unsigned on) {
  if (four.wide && (kWide || on == (1u << kFour) - 1)) {
    *reinterpret_cast<float4*>(to + four.at) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
#pragma unroll
    for (int k = 0; k < kFour; ++k) {
      if (on >> k & 1) to[four.at + k] = from[k];
    }
  }
}

}  // namespace lumigrad::training
