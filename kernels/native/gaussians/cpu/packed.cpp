#include "gaussians/cpu/packed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/math/number.h"
#include "gaussians/math/packed_row.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

constexpr int kMostOthers = 24;

// The bits from `at` on, at least 57 of them. May read up to seven bytes beyond a row's words, where scales lie.
LG_INLINE uint64_t bits_from(const uint32_t* words, int at) {
  uint64_t bits;
  std::memcpy(&bits, reinterpret_cast<const uint8_t*>(words) + at / 8, sizeof(bits));
  return bits >> (at % 8);
}

template <class Bits, int kCount>
LG_INLINE void unpack_harmonics(const uint32_t* words, const float* steps, float* row) {
  uint32_t fields[kCount];
  for (int k = 0; k < kCount; ++k) fields[k] = bits_from(words, kHarmonicsAt + Bits::kAll * k);
  for (int k = 0; k < kCount; ++k) unpack_harmonic<Bits>(fields[k], steps, row + kColors * k);
}

template <int kCoefficients>
void unpack_colors(const PackedParts& from, int64_t count, float* sh) {
  const float constant_factor = from.factors[1];
  const float step_factors[] = {from.factors[2], from.factors[3], from.factors[4]};
  for (int64_t i = 0; i < count; ++i) {
    float* row = sh + kColors * kCoefficients * i;
    for (int c = 0; c < kColors; ++c) row[c] = from_half(from.constant[kColors * i + c]) * constant_factor;
    if constexpr (kCoefficients > 1) {
      const uint32_t* words = from.words + from.row_words * i;
      float steps[3];
      for (int p = 0; p < 3; ++p) {
        steps[p] = step_of(bits_from(words, kStepsAt + kStepBits * p) & ((1 << kStepBits) - 1), step_factors[p]);
      }
      unpack_harmonics<PlanesOf<kCoefficients>, kCoefficients - 1>(words, steps, row + kColors);
    }
  }
}

void unpack(const RowBlock& rows, int64_t begin, const UnpackedRows& to) {
  const PackedParts from = parts_of(rows);
  std::memcpy(to.means + 3 * begin, from.means, sizeof(float) * 3 * rows.count);
  const float scale_factor = from.factors[0];
  float *quats = to.quats + 4 * begin, *opacities = to.opacities + begin, *scales = to.scales + 3 * begin;
  for (int64_t i = 0; i < rows.count; ++i) {
    const uint64_t bits = bits_from(from.words + from.row_words * i, 0);
    unpack_direction(bits, quats + 4 * i);
    opacities[i] = unpack_opacity(bits);
  }
  for (int64_t i = 0; i < 3 * rows.count; ++i) scales[i] = from_half(from.scales[i]) * scale_factor;
  if (to.sh == nullptr) return;
  switch (to.coefficients) {
    case 4:
      return unpack_colors<4>(from, rows.count, to.sh + begin * 12);
    case 9:
      return unpack_colors<9>(from, rows.count, to.sh + begin * 27);
    case 16:
      return unpack_colors<16>(from, rows.count, to.sh + begin * 48);
    case 25:
      return unpack_colors<25>(from, rows.count, to.sh + begin * 75);
    default:
      return unpack_colors<1>(from, rows.count, to.sh + begin * 3);
  }
}

void copy(const RowBlock& rows, int64_t begin, const UnpackedRows& to) {
  const float* from = rows.values;
  const auto next = [&](float* part, int64_t width) {
    std::memcpy(part + width * begin, from, sizeof(float) * width * rows.count);
    from += width * rows.count;
  };
  next(to.means, 3);
  next(to.quats, 4);
  next(to.scales, 3);
  next(to.opacities, 1);
  if (to.sh != nullptr) next(to.sh, kColors * to.coefficients);
}

// Rounds to the nearest whole number, or the even one of two; for magnitudes below 2**22.
LG_INLINE float round_to_even(float value) {
  constexpr float kShift = 0x1.8p23f;
  return (value + kShift) - kShift;
}

uint64_t pack_direction(const float* quat) {
  // Quaternions whose components are all smaller are no rotation.
  constexpr float kShortest = 1e-18f;
  uint64_t number = 0;
  for (uint64_t k = 1; k < 4; ++k) {
    if (std::abs(quat[k]) > std::abs(quat[number])) number = k;
  }
  const float largest = quat[number];
  if (!(std::abs(largest) > kShortest)) {
    return number | uint64_t{kZeroComponent} << (2 + kComponentBits) |
           uint64_t{kZeroComponent} << (2 + 2 * kComponentBits);
  }
  uint64_t bits = number;
  for (uint64_t k = 1; k < 4; ++k) {
    const float component = round_to_even(quat[(number + k) & 3] / largest * kLargestComponent);
    bits |= static_cast<uint64_t>(static_cast<int>(component) + kZeroComponent) << (2 + kComponentBits * (k - 1));
  }
  return bits;
}

// Harmonics of a row as y, o and c.
struct Planes {
  float values[3][kMostOthers];

  LG_INLINE Planes(const float* row, int count) {
    constexpr float kThird = static_cast<float>(1.0 / 3), kSixth = static_cast<float>(1.0 / 6);
    for (int k = 0; k < count; ++k) {
      const float red = row[kColors * k], green = row[kColors * k + 1], blue = row[kColors * k + 2];
      values[0][k] = red * kThird + green * kThird + blue * kThird;
      values[1][k] = red * 0.5f - blue * 0.5f;
      values[2][k] = green * kThird - (red * kSixth + blue * kSixth);
    }
  }
};

// The bits of a magnitude, which are in the order of magnitudes.
LG_INLINE uint32_t magnitude_bits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

// The largest number of a plane.
template <class Bits>
LG_INLINE int largest_of(int plane) {
  return plane == 0 ? Bits::kLargestY : plane == 1 ? Bits::kLargestO : Bits::kLargestC;
}

// Writes the least steps that rows need, and the factors of steps.
template <class Bits>
void find_steps(const UnpackedRows& from, int64_t count, float* needed, float* factors) {
  constexpr uint32_t kLeastExponent = 25, kTwiceTheBias = 254, kMantissaBits = 23;
  const int others = from.coefficients - 1;
  uint32_t most[3] = {};
  for (int64_t i = 0; i < count; ++i) {
    const Planes planes(from.sh + kColors * (i * from.coefficients + 1), others);
    for (int p = 0; p < 3; ++p) {
      uint32_t largest = 0;
      for (int k = 0; k < others; ++k) largest = std::max(largest, magnitude_bits(planes.values[p][k]));
      needed[3 * i + p] = std::bit_cast<float>(largest) * static_cast<float>(1.0 / largest_of<Bits>(p));
      most[p] = std::max(most[p], magnitude_bits(needed[3 * i + p]));
    }
  }
  for (int p = 0; p < 3; ++p) {
    const uint32_t exponent = std::max((most[p] >> kMantissaBits) + 1, kLeastExponent);
    factors[p] = std::bit_cast<float>(exponent << kMantissaBits);
    const float reciprocal = std::bit_cast<float>((kTwiceTheBias - exponent) << kMantissaBits);
    for (int64_t i = 0; i < count; ++i) needed[3 * i + p] *= reciprocal;
  }
}

// Writes fields, the lowest bits first, into a row's words.
class Writer {
 public:
  explicit Writer(uint32_t* words) : words_(words) {}

  LG_INLINE void add(uint64_t field, int length) {
    bits_ |= field << count_;
    count_ += length;
    if (count_ >= 32) flush();
  }
  LG_INLINE void flush() {
    *words_++ = static_cast<uint32_t>(bits_);
    bits_ >>= 32;
    count_ -= 32;
  }
  int count() const { return count_; }

 private:
  uint32_t* words_;
  uint64_t bits_ = 0;
  int count_ = 0;
};

template <class Bits>
LG_INLINE void pack_harmonics(const float* row, int count, const float* steps, Writer& to) {
  Planes planes(row, count);
  for (int p = 0; p < 3; ++p) {
    const auto most = static_cast<float>(largest_of<Bits>(p));
    for (int k = 0; k < count; ++k) {
      const float number = round_to_even(planes.values[p][k] / steps[p]);
      planes.values[p][k] = std::min(std::max(number, -most), most) + most;
    }
  }
  for (int k = 0; k < count; ++k) {
    const auto field = [&](int p) { return static_cast<uint32_t>(planes.values[p][k]); };
    to.add(field(0) | field(1) << Bits::kOAt | field(2) << Bits::kCAt, Bits::kAll);
  }
}

template <class Bits>
void pack(const UnpackedRows& from, int64_t count, int64_t row_words, uint32_t* words, float* factors) {
  const int others = from.coefficients - 1;
  std::vector<float> needed(others > 0 ? 3 * count : 0);
  if (others > 0) find_steps<Bits>(from, count, needed.data(), factors);
  for (int64_t i = 0; i < count; ++i) {
    const float opacity = round_to_even(from.opacities[i] * kLargestOpacity);
    uint64_t head = pack_direction(from.quats + 4 * i) | static_cast<uint64_t>(opacity) << kOpacityAt;
    Writer to(words + row_words * i);
    to.add(head & 0xffffffff, 32);
    to.add(head >> 32, kStepsAt - 32);
    if (others > 0) {
      float steps[3];
      for (int p = 0; p < 3; ++p) {
        const uint32_t rounded_up = (std::bit_cast<uint32_t>(needed[3 * i + p]) + ((1u << kCutBits) - 1)) >> kCutBits;
        const uint32_t code = std::max(rounded_up, kLeastStep) - kLeastStep;
        steps[p] = step_of(code, factors[p]);
        to.add(code, kStepBits);
      }
      pack_harmonics<Bits>(from.sh + kColors * (i * from.coefficients + 1), others, steps, to);
    }
    if (to.count() > 0) to.flush();
  }
}

}  // namespace

void unpack_rows(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to) {
  for (const RowBlock& rows : blocks) {
    // Blocks without rows may be null pointers, which memcpy must not get.
    if (rows.count == 0) continue;
    rows.packed != nullptr ? unpack(rows, begin, to) : copy(rows, begin, to);
    begin += rows.count;
  }
}

void pack_words(const UnpackedRows& from, int64_t count, int64_t row_words, uint32_t* words, float* factors) {
  (from.coefficients <= kMostFine ? pack<FinePlanes> : pack<CoarsePlanes>)(from, count, row_words, words, factors);
}

LG_END
