// Finds the Gaussians that were visited in the tiles' lists: the forward pass stored the blocks in which each entry was
// drawn, and the blocks whose pixels have all ended.
#include "gaussians/cpu/lists/visits.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "gaussians/cpu/tile.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

constexpr int kCellsX = kTileWidth / kCell, kCells = kCellsX * (kTileHeight / kCell);
constexpr int kOpen = std::numeric_limits<int>::max();

struct Search {
  const View& view;
  const ViewData& data;
  const uint32_t* numbers;  // Numbers of the Gaussians, by place.
  uint8_t* visited;         // [P] by place, since reading the numbers of all entries would take longer
  int32_t* closers;         // [rows, columns] of cells
};

// Writes the cells of a tile. `last` has for each block the position of the last entry that was drawn in it.
void write_cells(const Search& s, int tile, const int (&last)[kBlocks]) {
  const ViewData& data = s.data;
  const int left = tile % data.tiles_x * kTileWidth, top = tile / data.tiles_x * kTileHeight;
  int positions[kCells] = {};
  for (int b = 0; b < kBlocks; ++b) {
    if (left + block_left(b) >= s.view.width || top + block_top(b) >= s.view.height) continue;
    int& position = positions[block_top(b) / kCell * kCellsX + block_left(b) / kCell];
    position = std::max(position, (data.closed[tile] >> b & 1u) != 0 ? last[b] : kOpen);
  }
  const int columns = (s.view.width + kCell - 1) / kCell, rows = (s.view.height + kCell - 1) / kCell;
  const uint32_t* entries = data.entries + data.tile_starts[tile];
  for (int cell = 0; cell < kCells; ++cell) {
    const int x = left / kCell + cell % kCellsX, y = top / kCell + cell / kCellsX;
    if (x >= columns || y >= rows) continue;
    const int position = positions[cell];
    s.closers[y * columns + x] = position == kOpen ? -1 : static_cast<int32_t>(s.numbers[entries[position]]);
  }
}

void search_tile(const Search& s, int tile) {
  const uint32_t begin = s.data.tile_starts[tile], end = s.data.tile_starts[tile + 1];
  int last[kBlocks] = {};
  for (uint32_t entry = begin; entry < end; ++entry) {
    const uint32_t mask = s.data.masks[entry];
    if (mask == 0) continue;
    // Threads that visit the same Gaussian write the same value.
    std::atomic_ref<uint8_t>(s.visited[s.data.entries[entry]]).store(1, std::memory_order_relaxed);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) last[__builtin_ctz(rest)] = static_cast<int>(entry - begin);
  }
  write_cells(s, tile, last);
}

}  // namespace

void find_visits(const View* views, int view, const Settings&, const Scene& scene, const Visits& visits, Pass& pass,
                 Workspace& w) {
  StageClock clock(w.milliseconds);
  const View& of = views[view];
  ViewState& state = pass.view(view);
  const ViewData data = view_data(state, scene.count);
  const int64_t cells = int64_t{(of.width + kCell - 1) / kCell} * ((of.height + kCell - 1) / kCell);
  const std::size_t places = static_cast<std::size_t>(data.places);
  const uint32_t* numbers = numbers_of(data, scene.count, w.pairs);
  uint8_t* by_place = w.scratch.ensure<uint8_t>(places);
  std::memset(by_place, 0, places);
  const Search search{of, data, numbers, by_place, visits.closers + view * cells};
  // Neighbouring tiles share Gaussians.
  for_parts(data.tiles_y, [&](int row) {
    for (int x = 0; x < data.tiles_x && !is_stopping(); ++x) search_tile(search, row * data.tiles_x + x);
  });
  uint8_t* visited = visits.visited + view * scene.count;
  std::memset(visited, 0, static_cast<std::size_t>(scene.count));
  for (std::size_t i = 0; i < sixteens_of(scene.count); ++i) {
    const uint8_t* from = by_place + data.sixteens[i].first;
    for (unsigned rest = data.sixteens[i].drawn; rest != 0; rest &= rest - 1) {
      visited[i * kLanes + static_cast<std::size_t>(__builtin_ctz(rest))] = *from++;
    }
  }
  clock.stage(kBlendStage);
}

LG_END
