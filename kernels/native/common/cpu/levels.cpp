// Converts images to levels.
#include "common/cpu/levels.h"
#include "common/threads.h"

LG_BEGIN

void convert_levels(const float* values, std::size_t count, uint8_t* levels) {
  // A multiple of a pack.
  constexpr std::size_t kPart = 1 << 16;
  for_parts(static_cast<int>((count + kPart - 1) / kPart), [=](int part) {
    const std::size_t first = part * kPart, end = count - first < kPart ? count : first + kPart;
    std::size_t i = first;
    for (; i + kLanes <= end; i += kLanes) store_levels(load_unaligned(values + i), levels + i);
    if (i == end) return;
    alignas(64) float rest[kLanes] = {};
    std::memcpy(rest, values + i, sizeof(float) * (end - i));
    write_levels(rest, end - i, levels + i);
  });
}

LG_END
