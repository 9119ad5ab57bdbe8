// The items (spheres, Gaussians) that overlap each tile of each view, nearest first, on the device. The kernel that
// creates the items counts their (tile, item) pairs; items are sorted by depth while the count is copied to the host;
// then the pairs are listed in this order, and sorted by tile.
#pragma once

#include "common/cuda/memory.h"
#include "common/cuda/pairs.h"

namespace lumigrad {

inline constexpr int kDeviceTile = 16;  // Pixels along each side.
// Larger than all numbers: the depth key of an item that is not drawn.
inline constexpr unsigned kBehindAll = 0xFFFFFFFFu;

// The start of a tile's list if tiles are not listed.
inline constexpr unsigned kUnlisted = 0xFFFFFFFFu;

// Neighbouring tiles in a row of tiles, from a column on.
struct TileRun {
  unsigned row, column, count;
};

// Passed to kernels by value. An item belongs to one view, and the items of a view are consecutive. Its rank is its
// place in the order by view, then depth.
struct TileLists {
  int views, tiles_x, tiles_y;
  unsigned pairs;  // Listed pairs of all views; with `counted` the number that memory was allocated for.
  // The number of pairs, on the device, if the host does not know it yet; else null.
  const unsigned long long* counted;
  const unsigned* order;       // [items] items by rank
  const unsigned* view_ranks;  // [views + 1] where the ranks of each view start, and where the last view's end.
  // [views * tiles + 1] into `entries`; all kUnlisted if tiles are not listed and each goes through all items.
  const unsigned* tile_starts;
  const unsigned* entries;  // [pairs] the items of each tile, nearest first: ranks or items, see `list_tiles`.
};

// Owns the memory that TileLists points to.
struct TileBuffers {
  DeviceBuffer<unsigned> order, view_ranks, tile_starts, entries;
  DeviceBuffer<unsigned long long> counted;

  std::size_t bytes() const { return order.bytes() + view_ranks.bytes() + tile_starts.bytes() + entries.bytes(); }
};

// Passed to kernels by value.
struct TileCounts {
  unsigned* of_items;         // [items] the number of tiles that each item overlaps, or null.
  unsigned long long* pairs;  // The sum of these numbers, which may exceed 32 bits, or null.

  __device__ bool wanted() const { return of_items != nullptr || pairs != nullptr; }
};

// Owns the memory that TileCounts points to; the sum starts at 0.
class TileCountBuffers {
 public:
  TileCountBuffers(std::size_t items, cudaStream_t stream);

  TileCounts counts() const { return {of_items_.data(), pairs_.data()}; }
  const DeviceBuffer<unsigned>& of_items() const { return of_items_; }

 private:
  DeviceBuffer<unsigned> of_items_;
  DeviceBuffer<unsigned long long> pairs_;
};

// The grid of tiles that covers images of this size.
TileLists tile_grid(int views, int width, int height);
// Sets starts[i] to the number of sorted keys below `first` + i, for i < count.
void find_starts(const DeviceBuffer<unsigned>& keys, unsigned first, unsigned count, unsigned* starts,
                 cudaStream_t stream);
// Sets to[i] to from[places[i]].
void gather(const DeviceBuffer<unsigned>& from, const DeviceBuffer<unsigned>& places, const DeviceBuffer<unsigned>& to,
            cudaStream_t stream);
// Sorts the items. `keys` are the items' keys: unsigned numbers that ascend with the depth, kBehindAll for items that
// are not drawn. Items with equal keys keep the order of their numbers. The view of an item is numbers[item] / items,
// or item / items without `numbers`.
void sort_by_depth(const DeviceBuffer<unsigned>& keys, const unsigned* numbers, int items, TileLists& lists,
                   TileBuffers& buffers, cudaStream_t stream);
// Leaves the tiles unlisted.
void leave_unlisted(TileLists& lists, TileBuffers& buffers, cudaStream_t stream);
// Sorts listed pairs by tile and finds where each tile's pairs start.
void sort_by_tile(const DeviceBuffer<unsigned>& tiles, const DeviceBuffer<unsigned>& entries, TileLists& lists,
                  TileBuffers& buffers, cudaStream_t stream);

}  // namespace lumigrad
