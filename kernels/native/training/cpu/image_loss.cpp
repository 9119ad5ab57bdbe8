// The image loss and its gradient, tile by tile.
#include <atomic>

#include "common/threads.h"
#include "training/cpu/engine.h"
#include "training/cpu/image_tile.h"

LG_BEGIN_ENGINE(training)

namespace {

// A tile's size: its filtered rows should stay in the second-level cache; values beyond its edges are recomputed.
constexpr int64_t kColumns = 768;
constexpr int kRows = 96;
// The number of rows whose weights one thread sums.
constexpr int kMaskRows = 64;

// The sums of weights in a view, over pixels and over positions of windows.
struct Count {
  double pixels, positions;
};

struct Grid {
  explicit Grid(const ImageLoss& loss)
      : all(int64_t{loss.width} * loss.channels),
        down((loss.height + kRows - 1) / kRows),
        rows((loss.height + down - 1) / down) {
    const int64_t across_wanted = (all + kColumns - 1) / kColumns;
    columns = (all + across_wanted - 1) / across_wanted;
    columns = (columns + kLanes - 1) / kLanes * kLanes;
    across = static_cast<int>((all + columns - 1) / columns);
  }
  int of_view() const { return across * down; }
  Tile tile(int number, int height) const {
    const int in_view = number % of_view(), row = in_view / across * rows;
    const int64_t column = in_view % across * columns;
    const int row_end = row + rows < height ? row + rows : height;
    return {number / of_view(), row, row_end, column, column + columns < all ? column + columns : all};
  }
  int64_t all, columns;
  int down, rows, across;
};

Count count_rows(const ImageLoss& loss, int view, int begin, int end) {
  const int edge = loss.valid ? kRadius : 0;
  Count count{};
  for (int row = begin; row < end; ++row) {
    const int64_t at = (int64_t{view} * loss.height + row) * loss.width;
    double sum = 0.0, inner = 0.0;
    for (int x = 0; x < loss.width; ++x) {
      const double weight = weight_at(loss.mask, at + x);
      sum += weight;
      if (x >= edge && x < loss.width - edge) inner += weight;
    }
    count.pixels += sum;
    if (row >= edge && row < loss.height - edge) count.positions += inner;
  }
  return count;
}

void count_views(const ImageLoss& loss, Count* parts, Count* counts) {
  const int edge = loss.valid ? 2 * kRadius : 0, bands = (loss.height + kMaskRows - 1) / kMaskRows;
  if (loss.mask.data == nullptr) {
    for (int v = 0; v < loss.views; ++v) {
      counts[v] = {double(loss.height) * loss.width, double(loss.height - edge) * (loss.width - edge)};
    }
    return;
  }
  for_parts(loss.views * bands, [&](int part) {
    const int begin = part % bands * kMaskRows;
    const int end = begin + kMaskRows < loss.height ? begin + kMaskRows : loss.height;
    parts[part] = count_rows(loss, part / bands, begin, end);
  });
  for (int v = 0; v < loss.views; ++v) {
    counts[v] = {};
    for (int b = 0; b < bands; ++b) {
      counts[v].pixels += parts[v * bands + b].pixels;
      counts[v].positions += parts[v * bands + b].positions;
    }
  }
}

double inverse(double count) { return count > 0.0 ? 1.0 / count : 0.0; }

Factors factors_of(const ImageLoss& loss, const Count& count) {
  const double pixel = loss.view_weight * inverse(count.pixels * loss.channels);
  const double position = loss.view_weight * inverse(count.positions * loss.channels);
  return {static_cast<float>(pixel * loss.l1), static_cast<float>(pixel * loss.l2),
          static_cast<float>(position * loss.dssim)};
}

// Sums the tiles in order, so that the values are independent of the number of threads.
void store_values(const ImageLoss& loss, const TileSums* tiles, int of_view, const Count* counts, double* values) {
  for (int v = 0; v < loss.views; ++v) {
    TileSums sum{};
    for (int t = 0; t < of_view; ++t) {
      const TileSums& tile = tiles[v * of_view + t];
      sum = {sum.l1 + tile.l1, sum.l2 + tile.l2, sum.dssim + tile.dssim};
    }
    double* to = values + v * kLossValues;
    const double pixel = inverse(counts[v].pixels * loss.channels);
    to[kWeight] = counts[v].pixels;
    to[kL1] = sum.l1 * pixel;
    to[kL2] = sum.l2 * pixel;
    to[kDssim] = sum.dssim * inverse(counts[v].positions * loss.channels);
  }
}

}  // namespace

void image_loss(const ImageLoss& loss, double* values, Workspace& w) {
  StageClock clock(w.milliseconds);
  const Grid grid(loss);
  const int tiles = loss.views * grid.of_view(), threads = thread_count() < tiles ? thread_count() : tiles;
  const std::size_t bands = (loss.height + kMaskRows - 1) / kMaskRows;
  Count* counts = w.numbers.ensure<Count>(loss.views * (bands + 1));
  count_views(loss, counts + loss.views, counts);
  TileSums* sums = w.sums.ensure<TileSums>(tiles);
  const std::size_t floats = TileLoss::floats(loss.channels, grid.columns);
  float* scratch = w.scratch.ensure<float>(floats * threads);
  std::atomic<int> next{0};
  for_parts(threads, [&](int thread) {
    TileLoss tile_loss(loss, grid.columns, scratch + thread * floats);
    for (int t = next.fetch_add(1); t < tiles; t = next.fetch_add(1)) {
      const Tile tile = grid.tile(t, loss.height);
      sums[t] = tile_loss.run(tile, factors_of(loss, counts[tile.view]));
    }
  });
  store_values(loss, sums, grid.of_view(), counts, values);
  clock.stage(0);
}

LG_END
