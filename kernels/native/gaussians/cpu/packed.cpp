#include "gaussians/cpu/packed.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "common/math/number.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

constexpr int64_t kHeaderBytes = 16;
constexpr float kStep = static_cast<float>(1.0 / 32767);
constexpr int kChannels = 3;

// The parts of a block, in the order in which they lie.
struct Parts {
  float of_scales, of_constant, of_others;  // Factors.
  const float* means;
  const int16_t *quats, *opacities;
  const uint16_t *scales, *constant, *steps;
  const int8_t* others;

  explicit Parts(const RowBlock& rows) {
    float factors[kHeaderBytes / sizeof(float)];
    std::memcpy(factors, rows.packed, kHeaderBytes);
    of_scales = factors[0];
    of_constant = factors[1];
    of_others = factors[2];
    const uint8_t* at = rows.packed + kHeaderBytes;
    const auto next = [&](auto*& part, int64_t width) {
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(at);
      at += sizeof(*part) * width * rows.count;
    };
    next(means, 3);
    next(quats, 4);
    next(opacities, 1);
    next(scales, 3);
    next(constant, kChannels);
    next(steps, 1);
    next(others, 0);
  }
};

// Converts a finite float16; the exponents of float32 are larger by 112.
LG_INLINE float from_half(uint16_t half) {
  const float magnitude = std::bit_cast<float>((half & 0x7fffu) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (half & 0x8000u) << 16);
}

void unpack(const RowBlock& rows, int64_t begin, const UnpackedRows& to) {
  const Parts from(rows);
  std::memcpy(to.means + 3 * begin, from.means, sizeof(float) * 3 * rows.count);
  float *quats = to.quats + 4 * begin, *opacities = to.opacities + begin, *scales = to.scales + 3 * begin;
  for (int64_t i = 0; i < 4 * rows.count; ++i) quats[i] = static_cast<float>(from.quats[i]) * kStep;
  for (int64_t i = 0; i < rows.count; ++i) opacities[i] = static_cast<float>(from.opacities[i]) * kStep;
  for (int64_t i = 0; i < 3 * rows.count; ++i) scales[i] = from_half(from.scales[i]) * from.of_scales;
  if (to.sh == nullptr) return;
  const int width = kChannels * to.coefficients, others = width - kChannels;
  for (int64_t i = 0; i < rows.count; ++i) {
    float* row = to.sh + (begin + i) * width;
    for (int c = 0; c < kChannels; ++c) row[c] = from_half(from.constant[kChannels * i + c]) * from.of_constant;
    if (others == 0) continue;
    const float step = from_half(from.steps[i]) * from.of_others;
    for (int k = 0; k < others; ++k) row[kChannels + k] = static_cast<float>(from.others[others * i + k]) * step;
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

}  // namespace

void unpack_rows(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to) {
  for (const RowBlock& rows : blocks) {
    rows.packed != nullptr ? unpack(rows, begin, to) : copy(rows, begin, to);
    begin += rows.count;
  }
}

LG_END
