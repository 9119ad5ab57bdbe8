// Runs of leaves that are fitted together: fixed by their number, so that sums do not depend on the threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lumigrad::meshes {

// Owners of vertices that no face uses, and that faces of several chunks use; others are numbers of chunks.
inline constexpr uint8_t kNobody = 255, kEverybody = 254;

struct Chunks {
  int32_t leaves, length, count;

  explicit Chunks(int32_t leaf_count)
      : leaves(leaf_count), length(std::max(16, (leaf_count + 127) / 128)), count((leaf_count + length - 1) / length) {}
  int32_t begin(int chunk) const { return std::min(leaves, chunk * length); }
};

}  // namespace lumigrad::meshes
