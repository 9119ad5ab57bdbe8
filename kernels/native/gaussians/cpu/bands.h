// Assignment of rows of sums to threads: each thread has a band of tile rows. A Gaussian that overlaps several bands
// has a separate row in each band but the first, so that no two threads write the same row.
#pragma once

#include "gaussians/cpu/view.h"
#include "gaussians/math/ray.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr int kMaxBands = 256;

// The features that have room in a row of sums.
inline int first_row_feature(const Features& features) {
  if (features.surfels) return surfel_row::kUsed;
  return features.rays ? int{ray_row::kUsed} : int{gradient_row::kFeatures};
}
inline int row_features(const Features& features) { return kRecordFloats - first_row_feature(features); }

struct Bands {
  int count;
  int first[kMaxBands + 1];  // Tile rows.
  int row_floats;            // Size of a crossing row: the fields, then features that are not in the record.
  int32_t* crossing;         // [P] number among the Gaussians that reach into several bands, or -1
  int crossings;
  float* crossing_rows;       // [bands, crossings, row_floats]
  uint8_t* crossing_touched;  // [bands, crossings]

  LG_INLINE int band_of(int tile_row) const {
    int band = 0;
    while (tile_row >= first[band + 1]) ++band;
    return band;
  }
  LG_INLINE std::size_t crossing_index(int band, int number) const {
    return static_cast<std::size_t>(band) * crossings + number;
  }
};

// The destination of the sums of one Gaussian in one band.
struct RowTarget {
  float* fields;
  float* features;  // Features that are not in the row itself; else null.
  uint8_t* touched;
};

struct RowData {
  float* rows;          // [P, kRecordFloats]
  float* feature_rows;  // [P, features] or null
  uint8_t* touched;     // [P]

  LG_INLINE float* row(int64_t place) const { return rows + place * kRecordFloats; }
};

inline RowData row_data(ViewState& state) {
  const std::size_t n = state.places;
  const int total = state.features.total();
  RowData data;
  data.feature_rows = total > row_features(state.features) ? state.feature_rows.ensure<float>(n * total + 1) : nullptr;
  data.touched = state.touched.ensure<uint8_t>(n);
  data.rows = state.rows.ensure<float>(n * kRecordFloats);
  return data;
}

LG_INLINE RowTarget row_target(const Bands& bands, const RowData& rows, const ViewData& data, int band,
                               uint32_t place) {
  const int total = data.features.total();
  const int number = bands.crossings > 0 ? bands.crossing[place] : -1;
  if (number >= 0 && data.rectangles[place].y0 / kTileHeight < bands.first[band]) {
    const std::size_t index = bands.crossing_index(band, number);
    float* row = bands.crossing_rows + index * bands.row_floats;
    return {row, rows.feature_rows != nullptr ? row + kRecordFloats : nullptr, bands.crossing_touched + index};
  }
  return {rows.row(place),
          rows.feature_rows != nullptr ? rows.feature_rows + static_cast<int64_t>(place) * total : nullptr,
          rows.touched + place};
}

// Splits the tile rows into bands of about the same cost.
Bands make_bands(const ViewData& data, Workspace& workspace);
// Sums the rows of all bands, in the order of the bands.
void merge_bands(const Bands& bands, const RowData& rows, const ViewData& data);

LG_END
