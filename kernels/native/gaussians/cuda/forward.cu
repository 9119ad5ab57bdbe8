// The forward pass on the device: project, sort by depth, bin, blend. Binning, which finds the tiles that each Gaussian
// overlaps, is in this file; the other stages have their own.
#include <algorithm>
#include <optional>
#include <string>

#include "common/cuda/launch.h"
#include "common/cuda/tile_lists.cuh"
#include "gaussians/cuda/rays/field.cuh"
#include "gaussians/cuda/rays/stages.h"
#include "gaussians/cuda/surfels/stages.h"

namespace lumigrad::gaussians {
namespace {

// The tiles that an ellipse overlaps, row by row: in each row of tiles they are consecutive.
struct EllipseTiles {
  Ellipse<float> ellipse;
  PixelRange range;
  float center;       // Coordinate of the first pixel's centre.
  float above;        // log2 of the largest alpha over alpha_min, with a margin.
  float half_height;  // Of the ellipse on which alpha is alpha_min; pixels.
  float peak;         // dy of its rightmost point; its leftmost point has -peak.

  __device__ EllipseTiles(const Ellipse<float>& of, const PixelRange& within, float log2_alpha_min, float pixel_center)
      : ellipse(of), range(within), center(pixel_center) {
    above = max(ellipse.log2_opacity - log2_alpha_min, 0.0f) + kReachMargin;
    const float root = sqrt(above), uy = ellipse.uy, vy = ellipse.vy;
    half_height = root / vy;
    peak = -half_height * uy / sqrt(fma(uy, uy, vy * vy));
  }

  __device__ int first_row() const { return range.y0 / kDeviceTile; }
  __device__ int end_row() const { return (range.y1 + kDeviceTile - 1) / kDeviceTile; }

  // The tiles that it overlaps in a row of tiles. With dx = x - centre and dy = y - centre its
  // outline is ux dx = -uy dy +- sqrt(above - (vy dy)^2), dx being concave in dy on the right and convex on the left:
  // the outermost point within a band of rows is the peak, or the point of the band closest to it.
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
    // Exceeds the rounding errors.
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
  int quarters;            // From one to the next.
  float log2_alpha_min, pixel_center;

  __device__ EllipseTiles operator()(unsigned item) const {
    const float* record = &ellipses[static_cast<int64_t>(item) * quarters].x;
    return EllipseTiles(ellipse_of<float>(record), range_of(record), log2_alpha_min, pixel_center);
  }
};

// Of HalfRecords.
struct HalfReach {
  CudaRecords records;
  float log2_alpha_min, pixel_center;

  __device__ EllipseTiles operator()(unsigned item) const {
    return EllipseTiles(ellipse_of(records.half_record(item)), records.range(item), log2_alpha_min, pixel_center);
  }
};

// Lists the tiles' Gaussians if there are not too many, by the counts of their tiles.
template <class Reach>
void bin(const Reach& reach, const DeviceBuffer<unsigned>& counts, bool deterministic, CudaPass& pass,
         const CudaWorkspace& workspace, cudaStream_t stream) {
  const std::size_t pairs = workspace.pairs.wait(), limit = workspace.pair_limit;
  if (pairs <= limit) return list_tiles<Entry::item>(reach, counts, pairs, pass.lists, pass.tiles, stream);
  // Without lists there is no row for each pair.
  if (!deterministic) return;
  throw DeviceMemoryError(std::to_string(pairs) + " pairs of tiles and Gaussians, each with a row of gradients, are" +
                          " more than the " + std::to_string(limit) + " that deterministic sums may have");
}

// Sorts items by depth and lists those of each tile.
template <class Reach>
void order(const Reach& reach, DeviceBuffer<unsigned>& keys, const CudaCall& call, CudaPass& pass,
           CudaWorkspace& workspace, DeviceTimer& timer, cudaStream_t stream) {
  const DeviceBuffer<unsigned> counts = count_tiles(reach, keys, workspace.pairs, stream);
  timer.mark("project");
  sort_by_depth(keys, call.scene.count, pass.lists, pass.tiles, stream);
  timer.mark("sort");
  bin(reach, counts, call.settings.deterministic, pass, workspace, stream);
  timer.mark("bin");
}

// Items and tiles are numbered in 32 bits.
void check_size(std::size_t items, std::size_t tiles) {
  constexpr std::size_t kMost = 0x7FFFFFFF;
  if (items <= kMost && tiles <= kMost) return;
  throw DeviceMemoryError("views times Gaussians and tiles of all views must stay below 2^31, but there are " +
                          std::to_string(items) + " and " + std::to_string(tiles) + "; render fewer views at a time");
}

}  // namespace

DeviceTimer cuda_forward(const View* views, int count, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaCallData data(views, count, settings, scene, workspace.staging, stream);
  const CudaCall& call = data.call();
  const auto items = static_cast<std::size_t>(count) * scene.count;
  pass.lists = tile_grid(count, call.width, call.height);
  check_size(items, static_cast<std::size_t>(count) * pass.lists.tiles_x * pass.lists.tiles_y);
  pass.features = features_of(settings, scene, outputs);
  const auto stride = static_cast<std::size_t>(feature_stride(pass.features));
  const bool half = pass.half_precision && fits_half(pass.features);
  pass.records = DeviceBuffer<float4>(items * (half ? kHalfQuarters : kRecordQuarters), stream);
  const DeviceBuffer<uint2> ranges(half ? items : 0, stream);
  pass.more_features = DeviceBuffer<float>(items * stride, stream);
  pass.lasts = DeviceBuffer<int>(static_cast<std::size_t>(count) * call.width * call.height, stream);
  const CudaRecords records{pass.features, static_cast<int>(stride), pass.records.data(), pass.more_features.data(),
                            half ? ranges.data() : nullptr};
  DeviceBuffer<unsigned> keys(items, stream);
  if (settings.surfels) {
    const DeviceBuffer<float4> ellipses(items * kEllipseQuarters, stream);
    const std::size_t pixels = static_cast<std::size_t>(count) * call.width * call.height;
    pass.medians = DeviceBuffer<int>(pass.features.median_depth ? pixels : 0, stream);
    cuda_project_surfels(call, records, outputs, keys.data(), ellipses.data(), stream);
    cuda_colors(call, records, stream);
    const GaussianReach reach{ellipses.data(), kEllipseQuarters, log2_positive(settings.alpha_min),
                              settings.pixel_center};
    order(reach, keys, call, pass, workspace, timer, stream);
    cuda_draw_surfels(call, records, pass.lists, outputs, pass.lasts.data(), pass.medians.data(), stream);
    timer.mark("blend");
    return timer;
  }
  const bool colored = cuda_project(data, records, outputs, keys.data(), stream);
  if (settings.rays) {
    const std::size_t tiles = static_cast<std::size_t>(count) * pass.lists.tiles_x * pass.lists.tiles_y;
    pass.rays = DeviceBuffer<float>(tiles * kTilePixels * kRayFloats, stream);
    const DeviceBuffer<unsigned long long> masks(items, stream);
    cuda_rays(data, pass.lists, records, pass.rays.data(), keys.data(), masks.data(), stream);
    cuda_colors(call, records, stream);
    order(RayReach{records, masks.data()}, keys, call, pass, workspace, timer, stream);
    cuda_draw_rays(call, records, pass.lists, pass.rays.data(), outputs, pass.lasts.data(), stream);
  } else {
    if (!colored) cuda_colors(call, records, stream);
    const float log2_alpha_min = log2_positive(settings.alpha_min), center = settings.pixel_center;
    if (half) {
      order(HalfReach{records, log2_alpha_min, center}, keys, call, pass, workspace, timer, stream);
    } else {
      const GaussianReach reach{records.records, kRecordQuarters, log2_alpha_min, center};
      order(reach, keys, call, pass, workspace, timer, stream);
    }
    cuda_draw(call, records, pass.lists, outputs, pass.lasts.data(), stream);
  }
  timer.mark("blend");
  return timer;
}

}  // namespace lumigrad::gaussians
