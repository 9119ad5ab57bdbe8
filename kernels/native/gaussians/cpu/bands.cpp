#include "gaussians/cpu/bands.h"

#include <cstring>

LG_BEGIN_ENGINE(gaussians)
namespace {

// The approximate cost of rendering a row of tiles: the blocks drawn and the entries fetched.
void weigh_rows(const ViewData& data, int64_t* weights) {
  for_parts(data.tiles_y, [&](int y) {
    weights[y] = 0;
    if (y < data.first_row || y >= data.end_row) return;
    const uint32_t begin = data.tile_starts[y * data.tiles_x], end = data.tile_starts[(y + 1) * data.tiles_x];
    int64_t weight = 64 * data.tiles_x + 2 * static_cast<int64_t>(end - begin);
    for (uint32_t i = begin; i < end; ++i) weight += __builtin_popcount(data.masks[i]);
    weights[y] = weight;
  });
}

void split(const int64_t* weights, int rows, Bands& bands) {
  int64_t total = 0, sum = 0;
  for (int y = 0; y < rows; ++y) total += weights[y];
  int band = 0;
  bands.first[0] = 0;
  for (int y = 0; y < rows; ++y) {
    // A band ends at the row whose middle lies beyond the band's share; each band has at least one row.
    while (band + 1 < bands.count && y > bands.first[band] &&
           (2 * sum + weights[y]) * bands.count > 2 * total * (band + 1)) {
      bands.first[++band] = y;
    }
    sum += weights[y];
  }
  bands.count = band + 1;
  bands.first[bands.count] = rows;
}

void find_crossings(const ViewData& data, Bands& bands) {
  // Tile rows that begin a band, but for the first.
  const auto crosses = [&](const PixelRectangle& r) {
    const int y0 = r.y0 / kTileHeight, y1 = (r.y1 - 1) / kTileHeight;
    return r.x1 > r.x0 && y1 >= bands.first[bands.band_of(y0) + 1];
  };
  bands.crossings = 0;
  for (int64_t i = 0; i < data.places; ++i) bands.crossing[i] = crosses(data.rectangles[i]) ? bands.crossings++ : -1;
}

}  // namespace

Bands make_bands(const ViewData& data, Workspace& w) {
  Bands bands;
  const int threads = thread_count() < kMaxBands ? thread_count() : kMaxBands;
  bands.count = threads < data.tiles_y ? threads : data.tiles_y;
  int64_t* weights = w.histogram.ensure<int64_t>(static_cast<std::size_t>(data.tiles_y));
  weigh_rows(data, weights);
  split(weights, data.tiles_y, bands);
  const int total = data.features.total();
  const bool apart = total > row_features(data.features);
  bands.row_floats = kRecordFloats + (apart ? (total + kLanes - 1) / kLanes * kLanes : 0);
  bands.crossings = 0;
  bands.crossing = nullptr;
  bands.crossing_rows = nullptr;
  bands.crossing_touched = nullptr;
  if (bands.count == 1) return bands;
  bands.crossing = w.crossing.ensure<int32_t>(static_cast<std::size_t>(data.places));
  find_crossings(data, bands);
  const std::size_t rows = static_cast<std::size_t>(bands.count) * bands.crossings;
  bands.crossing_rows = w.crossing_rows.ensure<float>(rows * (bands.row_floats + 1));
  bands.crossing_touched = reinterpret_cast<uint8_t*>(bands.crossing_rows + rows * bands.row_floats);
  std::memset(bands.crossing_touched, 0, rows);
  return bands;
}

void merge_bands(const Bands& bands, const RowData& rows, const ViewData& data) {
  if (bands.crossings == 0) return;
  const int total = data.features.total();
  const auto add = [](float* to, const float* from, int n, bool first) {
    for (int i = 0; i < n; ++i) to[i] = first ? from[i] : to[i] + from[i];
  };
  for (int64_t place = 0; place < data.places; ++place) {
    const int number = bands.crossing[place];
    if (number < 0) continue;
    for (int band = 0; band < bands.count; ++band) {
      const std::size_t index = bands.crossing_index(band, number);
      if (bands.crossing_touched[index] == 0) continue;
      const float* row = bands.crossing_rows + index * bands.row_floats;
      const bool first = rows.touched[place] == 0;
      add(rows.row(place), row, kRecordFloats, first);
      if (rows.feature_rows != nullptr) add(rows.feature_rows + place * total, row + kRecordFloats, total, first);
      rows.touched[place] = 1;
    }
  }
}

LG_END
