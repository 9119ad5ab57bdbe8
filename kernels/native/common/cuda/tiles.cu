// Sorting items by depth and pairs by tile.
#include "common/cuda/tiles.h"

#include <algorithm>
#include <bit>

#include "common/cuda/launch.h"
#include "common/cuda/sort.h"

namespace lumigrad {
namespace {

constexpr unsigned kThreads = 256;

__global__ void gather_kernel(const unsigned* from, const unsigned* places, unsigned count, unsigned* to) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[places[i]];
}

// The view of each item, in the order of depth; items that are not drawn come after all views.
__global__ void view_kernel(const unsigned* keys, const unsigned* order, const unsigned* numbers, unsigned count,
                            unsigned items, unsigned views, unsigned* of) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const unsigned item = order[i];
  of[i] = keys[i] == kBehindAll ? views : (numbers != nullptr ? numbers[item] : item) / items;
}

// Keys to find among sorted keys: first + i * step for i < count.
struct Wanted {
  unsigned first, step, count;
};

// starts[i]: the number of sorted keys below wanted key i; kUnlisted if `counted` is not null and exceeds the number of
// keys, which is the number that memory was allocated for.
__global__ void starts_kernel(const unsigned* keys, unsigned keys_count, Wanted wanted,
                              const unsigned long long* counted, unsigned* starts) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= wanted.count) return;
  if (counted != nullptr && *counted > keys_count) {
    starts[i] = kUnlisted;
    return;
  }
  unsigned low = 0, high = keys_count;
  while (low < high) {
    const unsigned middle = low + (high - low) / 2;
    if (keys[middle] < wanted.first + i * wanted.step) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  starts[i] = low;
}

void find(const DeviceBuffer<unsigned>& keys, const Wanted& wanted, const unsigned long long* counted, unsigned* starts,
          cudaStream_t stream) {
  launch(starts_kernel, blocks_for(wanted.count, kThreads), kThreads, 0, stream, keys.data(),
         static_cast<unsigned>(keys.size()), wanted, counted, starts);
}

}  // namespace

TileCountBuffers::TileCountBuffers(std::size_t items, cudaStream_t stream)
    : of_items_(items, stream), pairs_(1, stream) {
  check(cudaMemsetAsync(pairs_.data(), 0, sizeof(unsigned long long), stream), "clearing a count");
}

void find_starts(const DeviceBuffer<unsigned>& keys, unsigned first, unsigned count, unsigned* starts,
                 cudaStream_t stream) {
  find(keys, {first, 1, count}, nullptr, starts, stream);
}

void gather(const DeviceBuffer<unsigned>& from, const DeviceBuffer<unsigned>& places, const DeviceBuffer<unsigned>& to,
            cudaStream_t stream) {
  launch(gather_kernel, blocks_for(to.size(), kThreads), kThreads, 0, stream, from.data(), places.data(),
         static_cast<unsigned>(to.size()), to.data());
}

TileLists tile_grid(int views, int width, int height) {
  TileLists lists{};
  lists.views = views;
  lists.tiles_x = (width + kDeviceTile - 1) / kDeviceTile;
  lists.tiles_y = (height + kDeviceTile - 1) / kDeviceTile;
  return lists;
}

void sort_by_depth(const DeviceBuffer<unsigned>& keys, const unsigned* item_numbers, int items, TileLists& lists,
                   TileBuffers& buffers, cudaStream_t stream) {
  const std::size_t n = keys.size();
  const auto count = static_cast<unsigned>(n), views = static_cast<unsigned>(lists.views);
  DeviceBuffer<unsigned> sorted(n, stream);
  buffers.order = DeviceBuffer<unsigned>(n, stream);
  buffers.view_ranks = DeviceBuffer<unsigned>(views + 1, stream);
  unsigned* ranks = buffers.view_ranks.data();
  sort_pairs(keys.data(), sorted.data(), nullptr, buffers.order.data(), static_cast<int>(n), 0, 32, stream);
  if (views == 1) {
    // The ranks of a single view begin at 0, and end before the items that are not drawn.
    find(sorted, {0, kBehindAll, 2}, nullptr, ranks, stream);
  } else {
    // The sort by view is stable, so that items keep the order of depth within a view.
    DeviceBuffer<unsigned> view_of(n, stream), order(n, stream);
    launch(view_kernel, blocks_for(n, kThreads), kThreads, 0, stream, sorted.data(), buffers.order.data(), item_numbers,
           count, static_cast<unsigned>(items), views, view_of.data());
    sort_pairs(view_of.data(), sorted.data(), buffers.order.data(), order.data(), static_cast<int>(n), 0,
               std::bit_width(views), stream);
    std::swap(buffers.order, order);
    find_starts(sorted, 0, views + 1, ranks, stream);
  }
  lists.order = buffers.order.data();
  lists.view_ranks = ranks;
}

void leave_unlisted(TileLists& lists, TileBuffers& buffers, cudaStream_t stream) {
  const std::size_t tiles = static_cast<std::size_t>(lists.views) * lists.tiles_x * lists.tiles_y;
  buffers.tile_starts = DeviceBuffer<unsigned>(tiles + 1, stream);
  static_assert(kUnlisted == 0xFFFFFFFFu);
  check(cudaMemsetAsync(buffers.tile_starts.data(), 0xFF, buffers.tile_starts.bytes(), stream), "clearing lists");
  lists.tile_starts = buffers.tile_starts.data();
}

void sort_by_tile(const DeviceBuffer<unsigned>& tiles, const DeviceBuffer<unsigned>& entries, TileLists& lists,
                  TileBuffers& buffers, cudaStream_t stream) {
  const std::size_t pairs = entries.size();
  const auto count = static_cast<unsigned>(lists.views * lists.tiles_x * lists.tiles_y);
  DeviceBuffer<unsigned> sorted(pairs, stream);
  buffers.entries = DeviceBuffer<unsigned>(pairs, stream);
  buffers.tile_starts = DeviceBuffer<unsigned>(count + 1, stream);
  // Places without a pair have a number beyond all tiles.
  const unsigned largest = lists.counted != nullptr ? count : count - 1;
  const int bits = std::max(1, static_cast<int>(std::bit_width(largest)));
  sort_pairs(tiles.data(), sorted.data(), entries.data(), buffers.entries.data(), static_cast<int>(pairs), 0, bits,
             stream);
  find(sorted, {0, 1, count + 1}, lists.counted, buffers.tile_starts.data(), stream);
  lists.entries = buffers.entries.data();
  lists.tile_starts = buffers.tile_starts.data();
}

}  // namespace lumigrad
