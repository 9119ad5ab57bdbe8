#include "gaussians/cpu/packed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/math/number.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

constexpr int64_t kHeaderBytes = 32, kFactors = kHeaderBytes / sizeof(float);
constexpr int kChannels = 3, kBytesWithoutWords = 3 * sizeof(float) + (3 + kChannels) * sizeof(uint16_t);
constexpr int kComponentBits = 14, kZeroComponent = 8192, kOpacityAt = 44, kStepsAt = 60, kStepBits = 6;
constexpr int kHarmonicsAt = kStepsAt + 3 * kStepBits, kMostFine = 9;
constexpr float kLargestComponent = 8191, kLargestOpacity = 65535;
constexpr float kComponentStep = static_cast<float>(1.0 / 8191), kOpacityStep = static_cast<float>(1.0 / 65535);
// The highest bits of 2**-15, the smallest step, and how many of a float32's bits steps do not have.
constexpr uint32_t kLeastStep = (127 - 15) << 2, kCutBits = 21;

// The parts of a block, in the order in which they lie.
struct Parts {
  float factors[kFactors];  // Of scales, of the constant harmonics, and of three steps.
  int64_t word_bytes;       // Of a row.
  const float* means;
  const uint8_t* words;
  const uint16_t *scales, *constant;

  explicit Parts(const RowBlock& rows) {
    std::memcpy(factors, rows.packed, kHeaderBytes);
    means = reinterpret_cast<const float*>(rows.packed + kHeaderBytes);
    words = reinterpret_cast<const uint8_t*>(means + 3 * rows.count);
    word_bytes = (rows.bytes - kHeaderBytes) / rows.count - kBytesWithoutWords;
    scales = reinterpret_cast<const uint16_t*>(words + word_bytes * rows.count);
    constant = scales + 3 * rows.count;
  }
};

// The bits from `at` on, at least 57 of them. May read up to seven bytes beyond a row's words, where scales lie.
LG_INLINE uint64_t bits_from(const uint8_t* words, int at) {
  uint64_t bits;
  std::memcpy(&bits, words + at / 8, sizeof(bits));
  return bits >> (at % 8);
}

// Converts a finite float16; the exponents of float32 are larger by 112.
LG_INLINE float from_half(uint16_t half) {
  const float magnitude = std::bit_cast<float>((half & 0x7fffu) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (half & 0x8000u) << 16);
}

LG_INLINE void unpack_direction(uint64_t bits, float* quat) {
  const uint32_t number = bits & 3, mask = (1 << kComponentBits) - 1;
  const bool none = (bits >> 2 & mask) == 0;
  quat[number] = none ? 0.0f : 1.0f;
  for (uint32_t k = 1; k < 4; ++k) {
    const int component = static_cast<int>(bits >> (2 + kComponentBits * (k - 1)) & mask) - kZeroComponent;
    quat[(number + k) & 3] = none ? 0.0f : static_cast<float>(component) * kComponentStep;
  }
}

// The numbers of bits of y, o and c.
template <int kY, int kO, int kC>
struct Lengths {
  static constexpr int kOAt = kY, kCAt = kY + kO, kAll = kY + kO + kC;
  static constexpr int kLargest[] = {(1 << (kY - 1)) - 1, (1 << (kO - 1)) - 1, (1 << (kC - 1)) - 1};
};
using Fine = Lengths<8, 8, 8>;
using Coarse = Lengths<5, 5, 4>;

constexpr int kMostOthers = 24;

template <class Lengths, int kCount>
LG_INLINE void unpack_harmonics(const uint8_t* words, const float* steps, float* row) {
  uint32_t fields[kCount];
  for (int k = 0; k < kCount; ++k) fields[k] = bits_from(words, kHarmonicsAt + Lengths::kAll * k);
  for (int k = 0; k < kCount; ++k) {
    const auto value = [&](int at, int plane) {
      const int largest = Lengths::kLargest[plane], number = static_cast<int>(fields[k] >> at) & (2 * largest + 1);
      return static_cast<float>(number - largest) * steps[plane];
    };
    const float y = value(0, 0), o = value(Lengths::kOAt, 1), c = value(Lengths::kCAt, 2);
    row[kChannels * k] = y + o - c;
    row[kChannels * k + 1] = y + (c + c);
    row[kChannels * k + 2] = y - o - c;
  }
}

LG_INLINE float step_of(uint32_t code, float factor) {
  return std::bit_cast<float>((code + kLeastStep) << kCutBits) * factor;
}

template <class Lengths, int kOthers>
void unpack_colors(const Parts& from, int64_t count, float* sh) {
  for (int64_t i = 0; i < count; ++i) {
    float* row = sh + kChannels * (kOthers + 1) * i;
    for (int c = 0; c < kChannels; ++c) row[c] = from_half(from.constant[kChannels * i + c]) * from.factors[1];
    if constexpr (kOthers > 0) {
      const uint8_t* words = from.words + from.word_bytes * i;
      float steps[3];
      for (int p = 0; p < 3; ++p) {
        steps[p] = step_of(bits_from(words, kStepsAt + kStepBits * p) & ((1 << kStepBits) - 1), from.factors[2 + p]);
      }
      unpack_harmonics<Lengths, kOthers>(words, steps, row + kChannels);
    }
  }
}

void unpack(const RowBlock& rows, int64_t begin, const UnpackedRows& to) {
  if (rows.count == 0) return;
  const Parts from(rows);
  std::memcpy(to.means + 3 * begin, from.means, sizeof(float) * 3 * rows.count);
  float *quats = to.quats + 4 * begin, *opacities = to.opacities + begin, *scales = to.scales + 3 * begin;
  for (int64_t i = 0; i < rows.count; ++i) {
    const uint64_t bits = bits_from(from.words + from.word_bytes * i, 0);
    unpack_direction(bits, quats + 4 * i);
    opacities[i] = static_cast<float>(bits >> kOpacityAt & 0xffff) * kOpacityStep;
  }
  for (int64_t i = 0; i < 3 * rows.count; ++i) scales[i] = from_half(from.scales[i]) * from.factors[0];
  if (to.sh == nullptr) return;
  switch (to.coefficients) {
    case 4:
      return unpack_colors<Fine, 3>(from, rows.count, to.sh + begin * 12);
    case 9:
      return unpack_colors<Fine, 8>(from, rows.count, to.sh + begin * 27);
    case 16:
      return unpack_colors<Coarse, 15>(from, rows.count, to.sh + begin * 48);
    case 25:
      return unpack_colors<Coarse, 24>(from, rows.count, to.sh + begin * 75);
    default:
      return unpack_colors<Fine, 0>(from, rows.count, to.sh + begin * 3);
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
  if (to.sh != nullptr) next(to.sh, kChannels * to.coefficients);
}

// Rounds to the nearest whole number, or the even one of two; for magnitudes below 2**22.
LG_INLINE float round_to_even(float value) {
  constexpr float kShift = 0x1.8p23f;
  return (value + kShift) - kShift;
}

uint64_t pack_direction(const float* quat) {
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
      const float red = row[kChannels * k], green = row[kChannels * k + 1], blue = row[kChannels * k + 2];
      values[0][k] = red * kThird + green * kThird + blue * kThird;
      values[1][k] = red * 0.5f - blue * 0.5f;
      values[2][k] = green * kThird - (red * kSixth + blue * kSixth);
    }
  }
};

// The bits of a magnitude, which are in the order of magnitudes.
LG_INLINE uint32_t magnitude_bits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

// Writes the least steps that rows need, and the factors of steps.
template <class Lengths>
void find_steps(const UnpackedRows& from, int64_t count, float* needed, float* factors) {
  constexpr uint32_t kLeastExponent = 25, kTwiceTheBias = 254, kMantissaBits = 23;
  const int others = from.coefficients - 1;
  uint32_t most[3] = {};
  for (int64_t i = 0; i < count; ++i) {
    const Planes planes(from.sh + kChannels * (i * from.coefficients + 1), others);
    for (int p = 0; p < 3; ++p) {
      uint32_t largest = 0;
      for (int k = 0; k < others; ++k) largest = std::max(largest, magnitude_bits(planes.values[p][k]));
      needed[3 * i + p] = std::bit_cast<float>(largest) * static_cast<float>(1.0 / Lengths::kLargest[p]);
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

template <class Lengths>
LG_INLINE void pack_harmonics(const float* row, int count, const float* steps, Writer& to) {
  Planes planes(row, count);
  for (int p = 0; p < 3; ++p) {
    const float most = Lengths::kLargest[p];
    for (int k = 0; k < count; ++k) {
      const float number = round_to_even(planes.values[p][k] / steps[p]);
      planes.values[p][k] = std::min(std::max(number, -most), most) + most;
    }
  }
  for (int k = 0; k < count; ++k) {
    const auto field = [&](int p) { return static_cast<uint32_t>(planes.values[p][k]); };
    to.add(field(0) | field(1) << Lengths::kOAt | field(2) << Lengths::kCAt, Lengths::kAll);
  }
}

template <class Lengths>
void pack(const UnpackedRows& from, int64_t count, int64_t row_words, uint32_t* words, float* factors) {
  const int others = from.coefficients - 1;
  std::vector<float> needed(others > 0 ? 3 * count : 0);
  if (others > 0) find_steps<Lengths>(from, count, needed.data(), factors);
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
      pack_harmonics<Lengths>(from.sh + kChannels * (i * from.coefficients + 1), others, steps, to);
    }
    if (to.count() > 0) to.flush();
  }
}

}  // namespace

void unpack_rows(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to) {
  for (const RowBlock& rows : blocks) {
    rows.packed != nullptr ? unpack(rows, begin, to) : copy(rows, begin, to);
    begin += rows.count;
  }
}

void pack_words(const UnpackedRows& from, int64_t count, int64_t row_words, uint32_t* words, float* factors) {
  (from.coefficients <= kMostFine ? pack<Fine> : pack<Coarse>)(from, count, row_words, words, factors);
}

LG_END
