#include "common/cuda/pairs.h"

#include <algorithm>
#include <bit>

#include "common/cuda/launch.h"

namespace lumigrad {
namespace {

constexpr unsigned long long kUnknown = ~0ull;

}  // namespace

PairCount::PairCount() {
  check(cudaMallocHost(reinterpret_cast<void**>(&place_), sizeof(*place_)), "allocating host memory");
  *place_ = kUnknown;
}

PairCount::~PairCount() { cudaFreeHost(place_); }

std::optional<std::size_t> PairCount::read() const {
  // The device may write concurrently; the number of an earlier call is also valid.
  const unsigned long long value = *static_cast<const volatile unsigned long long*>(place_);
  if (value == kUnknown) return std::nullopt;
  return static_cast<std::size_t>(value);
}

PairRoom::Kind& PairRoom::of(std::size_t items, std::size_t tiles) {
  return kinds_[{std::bit_width(items), std::bit_width(tiles)}];
}

std::optional<std::size_t> PairRoom::expected(std::size_t items, std::size_t tiles) {
  Kind& kind = of(items, tiles);
  const std::optional<std::size_t> last = kind.count.read();
  if (!last) return std::nullopt;
  if (*last > limit_) return 0;
  // The estimate decreases slowly, so that alternating views keep their room.
  kind.expected = std::max({*last + *last / 4, kind.expected - kind.expected / 64, tiles});
  return std::min(kind.expected, limit_);
}

}  // namespace lumigrad
