// Exact: rows of sums per sphere, and their conversion to gradient arrays and camera sums.
#pragma once

#include "spheres/cpu/draw.h"

LG_BEGIN_ENGINE(spheres)

// A row: an ExactRow, then K colours. Where no opacity has a gradient, its place may count the pixels that the sphere
// touched: one line of memory less for each pair of a sphere and a tile.
inline constexpr int kRowCount = 4;
inline constexpr int64_t kMaxCounted = 1 << 24;  // Up to here a float counts one by one.
inline constexpr int kRowFields = 8;             // With 3 channels.
inline constexpr int kMaxBands = 256;

// Bands of tile rows, one per thread, with lists of about equal total length.
struct Bands {
  int count;
  int first[kMaxBands + 1];
  float* scratch;
  std::size_t scratch_floats;
  double* parts;  // Per band: camera sums, then K background sums.
  int part_doubles;
  LG_INLINE double* sums(int part) const { return parts + static_cast<std::size_t>(part) * part_doubles; }
};

struct Rows {
  int width;                // Floats per row.
  bool counted;             // Whether the rows count the touched pixels; `touched` is then written at the end.
  float* rows;              // [N, width]
  int32_t* touched;         // [N]
  const int32_t* crossing;  // [N] number among the spheres that reach into several bands, or -1
  int crossings;
  float* crossing_rows;  // [bands, crossings, width + 8]; `touched` follows the row
};

Bands make_bands(const Prepared& prepared, int threads, std::size_t scratch_floats, Workspace& workspace);
Rows make_rows(const Scene& scene, const Gradients& gradients, const Prepared& prepared, bool counted, Bands& bands,
               Workspace& workspace);
void finish(const Camera& camera, const Scene& scene, const Prepared& prepared, const Gradients& gradients,
            const Bands& bands, const Rows& rows);

LG_INLINE void add_row(const Pack sums[kRowFields], float* row) { add_sums_of_8(sums, row); }

// The rows of pixels that a band writes.
struct BandRows {
  int top, bottom;  // Pixels.
  float* crossing_rows;

  BandRows(const Rows& rows, const Bands& bands, int part)
      : top(bands.first[part] * kTileHeight),
        bottom(bands.first[part + 1] * kTileHeight),
        crossing_rows(rows.crossing_rows + static_cast<std::size_t>(part) * rows.crossings * (rows.width + 8)) {}

  LG_INLINE float* row(const Rows& rows, const PixelRectangle& r, uint32_t id, int touched) {
    if (r.y0 >= top && r.y1 <= bottom) {
      if (!rows.counted) rows.touched[id] += touched;
      return rows.rows + static_cast<std::size_t>(id) * rows.width;
    }
    float* row = crossing_rows + static_cast<std::size_t>(rows.crossing[id]) * (rows.width + 8);
    reinterpret_cast<int32_t*>(row + rows.width)[0] += touched;
    return row;
  }
};

LG_END
