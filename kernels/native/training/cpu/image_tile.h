// A part of an image whose loss one thread computes, row by row. A row is filtered horizontally when it is read, and
// vertically when the last row of its window is read.
#pragma once

#include "common/cpu/pack.h"
#include "training/cpu/lanes.h"
#include "training/math/ssim.h"

LG_BEGIN_ENGINE(training)

// Columns count the numbers of a row: pixels with all their channels.
struct Tile {
  int32_t view, row_begin, row_end;
  int64_t begin, end;  // Columns.
};

// Factors of the terms of the gradient, for a weight of 1.
struct Factors {
  float l1, l2, dssim;
};

struct TileSums {
  double l1, l2, dssim;
};

class TileLoss {
 public:
  // Floats of scratch memory for tiles of up to this many columns.
  static std::size_t floats(int channels, int64_t columns);

  // `scratch` must be aligned.
  TileLoss(const ImageLoss& loss, int64_t columns, float* scratch);

  TileSums run(const Tile& tile, const Factors& factors);

 private:
  static constexpr int kMoments = 4, kDerivatives = 3;

  // Lengths of lines, padded by a pack: the tile's columns, the columns of the map of dissimilarities that they affect,
  // and the columns of the image that affect these.
  struct Widths {
    Widths(int channels, int64_t columns);
    int64_t halo;
    std::size_t own, map, input;
  };

  int64_t columns() const { return int64_t{loss_.width} * loss_.channels; }
  int64_t place(int row) const { return (int64_t{tile_.view} * loss_.height + row) * columns(); }
  bool in_map(int row) const;
  float* moments_of(int row) const { return moments_ + row % kTaps * kMoments * widths_.map; }
  float* derivatives_of(int row) const { return derivatives_ + row % kTaps * kDerivatives * widths_.own; }

  void load_weights(int row, int64_t begin, int64_t end, int64_t edge, float* to) const;
  void load_row(int row);
  void add_moments(int row);
  void add_derivatives(int row);
  void store_gradient(int row);

  const ImageLoss& loss_;
  const Widths widths_;
  Tile tile_{};
  Factors factors_{};
  float* input_[kMoments];    // A row of the image: x, x - y, x^2 + y^2 and (x - y)^2.
  float* map_[kDerivatives];  // A row of derivatives.
  float* values_;
  float* weights_;
  float* zeros_;
  float* moments_;      // The last rows, filtered along the line.
  float* derivatives_;  // The last rows of derivatives, filtered along the line.
  LaneSums l1_, l2_, dssim_;
};

LG_END
