// The fields of packed rows, which kernels/gaussians/packed_rows.py describes.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "common/math/number.h"
#include "gaussians/packed.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr int kColors = 3;
inline constexpr int kComponentBits = 14, kZeroComponent = 8192, kOpacityAt = 44, kStepsAt = 60, kStepBits = 6;
inline constexpr int kHarmonicsAt = kStepsAt + 3 * kStepBits;
inline constexpr float kLargestComponent = 8191, kLargestOpacity = 65535;
// A step is stored as the highest bits of a float32, without the `kCutBits` lowest, less those of the smallest step,
// 2**-15. It is times a power of two that no step of the block exceeds.
inline constexpr uint32_t kLeastStep = (127 - 15) << 2, kCutBits = 21;

// The parts of a packed block, in the order in which they lie.
struct PackedParts {
  const float* factors;  // Of scales, of the constant harmonics, and of three steps.
  const float* means;
  const uint32_t* words;
  int64_t row_words;
  const uint16_t *scales, *constant;
};

inline PackedParts parts_of(const RowBlock& block) {
  constexpr int64_t kHeaderBytes = 32, kBytesWithoutWords = 3 * sizeof(float) + (3 + kColors) * sizeof(uint16_t);
  const int64_t row_bytes = block.count > 0 ? (block.bytes - kHeaderBytes) / block.count : kBytesWithoutWords;
  const int64_t row_words = (row_bytes - kBytesWithoutWords) / static_cast<int64_t>(sizeof(uint32_t));
  const auto* means = reinterpret_cast<const float*>(block.packed + kHeaderBytes);
  const auto* words = reinterpret_cast<const uint32_t*>(means + 3 * block.count);
  const auto* scales = reinterpret_cast<const uint16_t*>(words + row_words * block.count);
  return {reinterpret_cast<const float*>(block.packed), means, words, row_words, scales, scales + 3 * block.count};
}

// The numbers of bits of y, o and c.
template <int kY, int kO, int kC>
struct PlaneBits {
  static constexpr int kOAt = kY, kCAt = kY + kO, kAll = kY + kO + kC;
  static constexpr int kLargestY = (1 << (kY - 1)) - 1, kLargestO = (1 << (kO - 1)) - 1,
                       kLargestC = (1 << (kC - 1)) - 1;
};
using FinePlanes = PlaneBits<8, 8, 8>;
using CoarsePlanes = PlaneBits<5, 5, 4>;
// The largest number of harmonics per channel with fine planes.
inline constexpr int kMostFine = 9;
template <int kCoefficients>
using PlanesOf = std::conditional_t<(kCoefficients <= kMostFine), FinePlanes, CoarsePlanes>;

// Converts a finite float16; the exponents of float32 are larger by 112.
LG_INLINE float from_half(uint16_t half) {
  const float magnitude = std::bit_cast<float>((half & 0x7fffu) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (half & 0x8000u) << 16);
}

// Unpacks the first bits of a row.
LG_INLINE void unpack_direction(uint64_t bits, float* quat) {
  constexpr float kStep = static_cast<float>(1.0 / kLargestComponent);
  const uint32_t number = bits & 3, mask = (1 << kComponentBits) - 1;
  const bool none = (bits >> 2 & mask) == 0;
  quat[number] = none ? 0.0f : 1.0f;
  for (uint32_t k = 1; k < 4; ++k) {
    const int component = static_cast<int>(bits >> (2 + kComponentBits * (k - 1)) & mask) - kZeroComponent;
    quat[(number + k) & 3] = none ? 0.0f : static_cast<float>(component) * kStep;
  }
}

LG_INLINE float unpack_opacity(uint64_t bits) {
  constexpr float kStep = static_cast<float>(1.0 / kLargestOpacity);
  return static_cast<float>(bits >> kOpacityAt & 0xffff) * kStep;
}

// The step of a plane, from its code and the block's factor.
LG_INLINE float step_of(uint32_t code, float factor) {
  return std::bit_cast<float>((code + kLeastStep) << kCutBits) * factor;
}

// Unpacks a harmonic: its y, o and c, from the lowest bit on, to red, green and blue.
template <class Bits>
LG_INLINE void unpack_harmonic(uint32_t bits, const float* steps, float* color) {
  const auto value = [&](int at, int largest, float step) {
    const int number = static_cast<int>(bits >> at) & (2 * largest + 1);
    return static_cast<float>(number - largest) * step;
  };
  const float y = value(0, Bits::kLargestY, steps[0]), o = value(Bits::kOAt, Bits::kLargestO, steps[1]),
              c = value(Bits::kCAt, Bits::kLargestC, steps[2]);
  color[0] = y + o - c;
  color[1] = y + (c + c);
  color[2] = y - o - c;
}

LG_END
