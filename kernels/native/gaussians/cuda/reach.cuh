// The tiles that ellipses overlap, see common/cuda/tile_lists.cuh.
#pragma once

#include "common/cuda/tile_lists.cuh"
#include "gaussians/cuda/stages.h"

namespace lumigrad::gaussians {

// The tiles that an ellipse overlaps, row by row: in each row of tiles they are consecutive.
struct EllipseTiles {
  Ellipse<float> ellipse;
  PixelRange range;
  float center;       // See ReachLimits.
  float above;        // log2 of the largest alpha over alpha_min, with a margin.
  float half_height;  // Half height of the ellipse on which alpha is alpha_min; pixels.
  float peak;         // dy of the ellipse's rightmost point; the leftmost point has -peak.

  __device__ EllipseTiles(const Ellipse<float>& of, const PixelRange& within, const ReachLimits& limits)
      : ellipse(of), range(within), center(limits.pixel_center) {
    above = max(ellipse.log2_opacity - limits.log2_alpha_min, 0.0f) + kReachMargin;
    const float root = sqrt(above), uy = ellipse.uy, vy = ellipse.vy;
    half_height = root / vy;
    peak = -half_height * uy / sqrt(fma(uy, uy, vy * vy));
  }

  __device__ int first_row() const { return range.y0 / kDeviceTile; }
  __device__ int end_row() const { return (range.y1 + kDeviceTile - 1) / kDeviceTile; }

  // The tiles that the ellipse overlaps in a row of tiles. With dx = x - centre and dy = y - centre, its outline is
  // ux dx = -uy dy +- sqrt(above - (vy dy)^2), where dx is concave in dy on the right and convex on the left. So the
  // outermost point within a band of rows is the peak, or the point of the band closest to it.
  __device__ TileRun in_row(int row) const {
    const int y0 = ::max(row * kDeviceTile, range.y0), y1 = ::min(row * kDeviceTile + kDeviceTile, range.y1) - 1;
    const float low = max(static_cast<float>(y0) + center - ellipse.y, -half_height);
    const float high = min(static_cast<float>(y1) + center - ellipse.y, half_height);
    if (!(low <= high)) return {};
    const auto edge = [&](float dy, float side) {
      const float v = ellipse.vy * dy;
      return fma(-ellipse.uy, dy, side * sqrt(max(fma(-v, v, above), 0.0f))) / ellipse.ux;
    };
    const float right = edge(min(max(peak, low), high), 1.0f), left = edge(min(max(-peak, low), high), -1.0f);
    // A margin that exceeds the rounding errors.
    const float margin = fma(1e-6f, max(abs(left), abs(right)), 0.01f), x = ellipse.x - center;
    const float first = max(ceilf(x + left - margin), static_cast<float>(range.x0));
    const float last = min(floorf(x + right + margin), static_cast<float>(range.x1 - 1));
    if (!(first <= last)) return {};
    const unsigned column = static_cast<unsigned>(truncate(first)) / kDeviceTile;
    return {static_cast<unsigned>(row), column, static_cast<unsigned>(truncate(last)) / kDeviceTile + 1 - column};
  }

  __device__ unsigned count() const {
    unsigned sum = 0;
    for (int row = first_row(); row < end_row(); ++row) sum += in_row(row).count;
    return sum;
  }
  __device__ unsigned runs() const { return static_cast<unsigned>(end_row() - first_row()); }
  __device__ TileRun run(unsigned number) const { return in_row(first_row() + static_cast<int>(number)); }
};

struct GaussianReach {
  const float4* ellipses;  // The first quarters of records.
  int quarters;            // The stride of ellipses, in quarters.
  ReachLimits limits;
  const unsigned* items;  // See CudaPlaces.
  unsigned each;          // The number of Gaussians of a scene.

  __device__ unsigned view(unsigned item) const { return items[item] / each; }
  __device__ EllipseTiles operator()(unsigned item) const {
    const float* record = &ellipses[static_cast<int64_t>(item) * quarters].x;
    return EllipseTiles(ellipse_of<float>(record), range_of(record), limits);
  }
};

}  // namespace lumigrad::gaussians
