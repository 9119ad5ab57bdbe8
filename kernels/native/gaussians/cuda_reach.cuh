// The tiles that an ellipse reaches, row by row: where it meets a row of tiles it covers one run of columns.
#pragma once

#include "gaussians/cuda_records.cuh"

namespace lumigrad::gaussians {

struct EllipseTiles {
  Ellipse<float> ellipse;
  PixelRange range;
  float center;       // Of the first pixel.
  float above;        // log2 of the largest alpha over the least, widened.
  float half_height;  // Of the ellipse where alpha is the least; pixels.
  float peak;         // dy of its rightmost point; that of the leftmost is the opposite.

  __device__ EllipseTiles(const float* record, float log2_alpha_min, float pixel_center)
      : ellipse(ellipse_of<float>(record)), range(range_of(record)), center(pixel_center) {
    above = max(ellipse.log2_opacity - log2_alpha_min, 0.0f) + kReachMargin;
    const float root = sqrt(above), uy = ellipse.uy, vy = ellipse.vy;
    half_height = root / vy;
    peak = -half_height * uy / sqrt(fma(uy, uy, vy * vy));
  }

  __device__ int first_row() const { return range.y0 / kDeviceTile; }
  __device__ int end_row() const { return (range.y1 + kDeviceTile - 1) / kDeviceTile; }

  // Columns of tiles [x, y) that it reaches in a row of tiles. With dx = x - centre and dy = y - centre the edges are
  // at ux dx = -uy dy +- sqrt(above - (vy dy)^2): concave to the right and convex to the left, so that the outermost
  // point in a band is the peak or, of the band, what is closest to it.
  __device__ uint2 columns(int row) const {
    const int y0 = ::max(row * kDeviceTile, range.y0), y1 = ::min(row * kDeviceTile + kDeviceTile, range.y1) - 1;
    const float low = max(static_cast<float>(y0) + center - ellipse.y, -half_height);
    const float high = min(static_cast<float>(y1) + center - ellipse.y, half_height);
    if (!(low <= high)) return make_uint2(0, 0);
    const auto edge = [&](float dy, float side) {
      const float v = ellipse.vy * dy;
      return fma(-ellipse.uy, dy, side * sqrt(max(fma(-v, v, above), 0.0f))) / ellipse.ux;
    };
    const float right = edge(min(max(peak, low), high), 1.0f), left = edge(min(max(-peak, low), high), -1.0f);
    // More than rounding costs.
    const float margin = fma(1e-6f, max(abs(left), abs(right)), 0.01f), x = ellipse.x - center;
    const float first = max(ceilf(x + left - margin), static_cast<float>(range.x0));
    const float last = min(floorf(x + right + margin), static_cast<float>(range.x1 - 1));
    if (!(first <= last)) return make_uint2(0, 0);
    return make_uint2(static_cast<unsigned>(truncate(first)) / kDeviceTile,
                      static_cast<unsigned>(truncate(last)) / kDeviceTile + 1);
  }

  __device__ unsigned count() const {
    unsigned sum = 0;
    for (int row = first_row(); row < end_row(); ++row) {
      const uint2 run = columns(row);
      sum += run.y - run.x;
    }
    return sum;
  }

  __device__ uint2 tile(unsigned place) const {
    int row = first_row();
    uint2 run = columns(row);
    while (place >= run.y - run.x && row + 1 < end_row()) {
      place -= run.y - run.x;
      run = columns(++row);
    }
    return make_uint2(run.x + place, static_cast<unsigned>(row));
  }
};

struct GaussianReach {
  CudaRecords records;
  float log2_alpha_min, pixel_center;

  __device__ EllipseTiles operator()(unsigned item) const {
    return EllipseTiles(records.record(item), log2_alpha_min, pixel_center);
  }
};

}  // namespace lumigrad::gaussians
