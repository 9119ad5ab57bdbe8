#include "emulation/approximate.h"

#include <atomic>
#include <bit>
#include <cmath>

namespace lumigrad::emulation {
namespace {

std::atomic<std::uint32_t> error_seed{0};

}  // namespace

void set_error_seed(std::uint32_t seed) { error_seed.store(seed); }

float approximated(float exact) {
  const std::uint32_t seed = error_seed.load(std::memory_order_relaxed);
  if (seed == 0 || !std::isnormal(exact)) return exact;
  const auto bits = std::bit_cast<std::uint32_t>(exact);
  std::uint32_t mixed = (bits ^ seed * 0x9E3779B9u) * 0x85EBCA6Bu;
  mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35u;
  return std::bit_cast<float>(bits + mixed % 5 - 2);
}

float flushed(float value) {
  if (error_seed.load(std::memory_order_relaxed) == 0 || std::fpclassify(value) != FP_SUBNORMAL) return value;
  return std::copysign(0.0f, value);
}

}  // namespace lumigrad::emulation
