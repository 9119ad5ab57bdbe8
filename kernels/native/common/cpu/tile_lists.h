// The tiles of the image, and the lists of primitives by tile: primitives are sorted by distance, then by tile with a
// stable counting sort.
#pragma once

#include <new>

#include "common/cpu/pack.h"
#include "common/cpu/radix_sort.h"
#include "common/math/pixel_rectangle.h"
#include "common/pool.h"
#include "common/room.h"
#include "common/threads.h"

LG_BEGIN

// The film in tiles of 32 x 16 pixels, each of 8 x 4 blocks of 4 x 4 pixels: a block is a pack.
inline constexpr int kTileWidthBits = 5, kTileHeightBits = 4;
inline constexpr int kTileWidth = 1 << kTileWidthBits, kTileHeight = 1 << kTileHeightBits;
inline constexpr int kBlocksX = kTileWidth / 4, kBlocksY = kTileHeight / 4, kBlocks = kBlocksX * kBlocksY;

// Coordinates of a block's pixels relative to its first one.
LG_INLINE Pack lane_x() {
  alignas(64) static constexpr float kX[kLanes] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  return Pack::load(kX);
}
LG_INLINE Pack lane_y() {
  alignas(64) static constexpr float kY[kLanes] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  return Pack::load(kY);
}

inline constexpr int kMaxParts = 256;

// The number of parts of a loop over primitives; one for small scenes, where waking threads costs more than it saves.
inline int parts_of(int64_t count) {
  const int64_t useful = count / 2048 + 1;
  const int threads = thread_count();
  return static_cast<int>(useful < threads ? useful : threads);
}

// The range of an array that each part of a loop has written: [begin, begin + length).
struct Segments {
  int parts;
  int64_t begin[kMaxParts], length[kMaxParts];

  int64_t total() const {
    int64_t sum = 0;
    for (int p = 0; p < parts; ++p) sum += length[p];
    return sum;
  }
  // Called once all entries are in one run: splits it evenly.
  void join(int64_t count) {
    parts = parts_of(count);
    for (int p = 0; p < parts; ++p) {
      begin[p] = count * p / parts;
      length[p] = count * (p + 1) / parts - begin[p];
    }
  }
};

// Sorts (key << 32 | number) by key; returns the array that holds the result, in one run.
inline uint64_t* sort_by_key(uint64_t* pairs, int64_t capacity, Segments& segments, Buffer& swap, Buffer& counts) {
  uint64_t* other = swap.ensure<uint64_t>(static_cast<std::size_t>(capacity));
  uint32_t* histogram = counts.ensure<uint32_t>(static_cast<std::size_t>(segments.parts) * kRadix);
  uint64_t* sorted = radix_sort(pairs, other, segments.begin, segments.length, segments.parts, histogram);
  segments.join(segments.total());
  return sorted;
}

// Counts the tiles that a part of the loop over primitives visits; a few primitives may cover the whole film.
class TileWork {
 public:
  // Whether the loop must end.
  bool stops_after(int64_t tiles) {
    constexpr int64_t kBetween = 1 << 16;
    done_ += tiles;
    if (__builtin_expect(done_ < kBetween, 1)) return false;
    done_ = 0;
    return is_stopping();
  }

 private:
  int64_t done_ = 0;
};

struct TileLists {
  uint32_t* starts;   // [tiles + 1]
  uint32_t* entries;  // Numbers of the primitives.
};

// Counting sort into tiles. each(part, visit, counting) calls visit(tile, number) for the entries of a part, in order,
// twice: first to count, then to place. Tile numbers from `tiles` on mean no tile. There are several of them, since
// each entry waits for the previous entry of its tile.
inline constexpr int kNoTiles = 3;
template <class Each>
TileLists fill_tile_lists(int tiles, int parts, Buffer& counts_buffer, Buffer& starts_buffer, Buffer& entries_buffer,
                          const Each& each) {
  const int slots = tiles + kNoTiles;
  uint32_t* counts = counts_buffer.ensure<uint32_t>(static_cast<std::size_t>(parts) * slots);
  uint32_t* starts = starts_buffer.ensure<uint32_t>(static_cast<std::size_t>(tiles) + 1);
  for_parts(parts, [&](int p) {
    uint32_t* own = counts + static_cast<int64_t>(p) * slots;
    for (int t = 0; t < slots; ++t) own[t] = 0;
    each(p, [own](int tile, uint32_t) { ++own[tile]; }, true);
  });
  uint64_t total = 0;
  for (int t = 0; t < tiles; ++t) {
    starts[t] = static_cast<uint32_t>(total);
    for (int p = 0; p < parts; ++p) {
      uint32_t& count = counts[static_cast<int64_t>(p) * slots + t];
      const uint32_t here = count;
      count = static_cast<uint32_t>(total);
      total += here;
    }
  }
  // Positions are 32-bit numbers: lists of more than 16 GiB are not supported.
  constexpr uint64_t kMost = UINT32_MAX - kMaxParts;
  if (total > kMost) throw NoRoom(total * sizeof(uint32_t), kMost * sizeof(uint32_t));
  const uint32_t sum = static_cast<uint32_t>(total);
  starts[tiles] = sum;
  // Entries without a tile are written after the lists, to one position per part.
  uint32_t* entries = entries_buffer.ensure<uint32_t>(static_cast<std::size_t>(sum) + parts);
  for_parts(parts, [&](int p) {
    uint32_t* next = counts + static_cast<int64_t>(p) * slots;
    for (int i = 0; i < kNoTiles; ++i) next[tiles + i] = sum + static_cast<uint32_t>(p);
    each(
        p,
        [next, entries, tiles](int tile, uint32_t number) {
          const uint32_t place = next[tile];
          entries[place] = number;
          next[tile] = place + (tile < tiles);
        },
        false);
  });
  return {starts, entries};
}

LG_END
