// The items (spheres, Gaussians) that overlap each tile of each view, nearest first, on the device: the kernel that
// makes the items counts their (tile, item) pairs, items are sorted by depth while the number is on its way to the
// host, the pairs are listed in this order, and sorted by tile.
#pragma once

#include "common/cuda/memory.h"
#include "common/cuda/pairs.h"

namespace lumigrad {

inline constexpr int kDeviceTile = 16;  // Pixels along each side.
// Larger than all numbers: the depth key of an item that is not drawn.
inline constexpr unsigned kBehindAll = 0xFFFFFFFFu;

// Start of the list of a tile if tiles are not listed.
inline constexpr unsigned kUnlisted = 0xFFFFFFFFu;

// Neighbouring tiles of a row of tiles, from a column on.
struct TileRun {
  unsigned row, column, count;
};

// Passed to kernels by value. An item is one of one view, items of a view following each other; its rank is its place
// in the order, in which the views follow each other, too.
struct TileLists {
  int views, tiles_x, tiles_y;
  unsigned pairs;  // Listed pairs of all views; with `counted` the number that there is room for.
  // Number of pairs, on the device, if the host does not know it yet; else null.
  const unsigned long long* counted;
  const unsigned* order;       // [items] items by rank
  const unsigned* view_ranks;  // [views + 1] where the ranks of each view start; the last is where they end.
  // [views * tiles + 1] into `entries`; all kUnlisted: tiles are not listed, each goes through all items.
  const unsigned* tile_starts;
  const unsigned* entries;  // [pairs] the items of each tile, nearest first: ranks or items, see `list_tiles`.
};

// Owns what TileLists points to.
struct TileBuffers {
  DeviceBuffer<unsigned> order, view_ranks, tile_starts, entries;
  DeviceBuffer<unsigned long long> counted;

  std::size_t bytes() const { return order.bytes() + view_ranks.bytes() + tile_starts.bytes() + entries.bytes(); }
};

// Passed to kernels by value.
struct TileCounts {
  unsigned* of_items;         // [items] the number of tiles that each overlaps, or null.
  unsigned long long* pairs;  // Their sum, which may exceed 32 bits, or null.

  __device__ bool wanted() const { return of_items != nullptr || pairs != nullptr; }
};

// Owns what TileCounts points to; the sum starts at 0.
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
// starts[i] becomes how many of the sorted keys are below `first` + i, for i < count.
void find_starts(const DeviceBuffer<unsigned>& keys, unsigned first, unsigned count, unsigned* starts,
                 cudaStream_t stream);
// numbers[i] becomes i.
void number(const DeviceBuffer<unsigned>& numbers, cudaStream_t stream);
// Sets to[i] to from[places[i]].
void gather(const DeviceBuffer<unsigned>& from, const DeviceBuffer<unsigned>& places, const DeviceBuffer<unsigned>& to,
            cudaStream_t stream);
// Fills in the order. `keys` are those of the items: unsigned numbers that ascend with the depth, kBehindAll for items
// that are not drawn. Items of equal keys keep the order of their numbers. The view of an item is numbers[item] /
// items, or without `numbers` item / items.
void sort_by_depth(const DeviceBuffer<unsigned>& keys, const unsigned* numbers, int items, TileLists& lists,
                   TileBuffers& buffers, cudaStream_t stream);
// Leaves the tiles unlisted.
void leave_unlisted(TileLists& lists, TileBuffers& buffers, cudaStream_t stream);
// Sorts listed pairs by tile and finds where each tile's start.
void sort_by_tile(const DeviceBuffer<unsigned>& tiles, const DeviceBuffer<unsigned>& entries, TileLists& lists,
                  TileBuffers& buffers, cudaStream_t stream);

}  // namespace lumigrad
