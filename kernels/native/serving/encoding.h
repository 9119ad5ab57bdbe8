// Conversions of float32 to the encodings of replies, with the bits of PyTorch's conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lumigrad::serving {

// Maps 0..1 to 0..255, rounded, ties to even; values outside are clamped, NaN becomes 0.
inline std::uint8_t level_of(float value) {
  float scaled = value * 255.0f;
  scaled = scaled > 0.0f ? scaled : 0.0f;
  scaled = scaled < 255.0f ? scaled : 255.0f;
  return static_cast<std::uint8_t>(std::nearbyint(scaled));
}

// Rounds, ties to even; every NaN becomes the positive quiet NaN.
inline std::uint16_t bfloat16_of(float value) {
  if (std::isnan(value)) return 0x7FC0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Rounds, ties to even; NaN stays NaN, with its sign and the highest bits of its payload.
inline std::uint16_t float16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<std::uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x1FF));
  // Infinity begins halfway between the largest finite number and the power of two above it.
  if (magnitude >= 0x477FF000) return static_cast<std::uint16_t>(sign | 0x7C00);
  if (magnitude < 0x38800000) {
    // Adding 0.5 leaves a whole number of the smallest steps, 2^-24, in the lowest bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign |
                                      (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f)));
  }
  const std::uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

}  // namespace lumigrad::serving
