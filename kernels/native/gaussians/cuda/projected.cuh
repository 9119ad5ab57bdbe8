// Outputs that the projection of a Gaussian writes besides its record.
#pragma once

#include "gaussians/cuda/gaussian.cuh"

namespace lumigrad::gaussians {

// A key that sorts like the float, including negative values.
__device__ inline unsigned sortable(float depth) {
  const unsigned b = __float_as_uint(depth);
  return b ^ ((b >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

// Writes the outputs per Gaussian that callers may request besides the images; 0 if it is culled.
__device__ inline void write_outputs(const Outputs& out, int64_t item, const Projected<float>& g) {
  const auto seen = [&](float value) { return g.visible ? value : 0.0f; };
  if (out.radii != nullptr) {
    out.radii[2 * item] = truncate(seen(g.radius_x));
    out.radii[2 * item + 1] = truncate(seen(g.radius_y));
  }
  if (out.means2d != nullptr) {
    out.means2d[2 * item] = seen(g.x);
    out.means2d[2 * item + 1] = seen(g.y);
  }
  if (out.depths != nullptr) out.depths[item] = seen(g.depth);
  if (out.conics != nullptr) {
    out.conics[3 * item] = seen(g.a);
    out.conics[3 * item + 1] = seen(g.b);
    out.conics[3 * item + 2] = seen(g.c);
  }
  if (out.projected_opacities != nullptr) out.projected_opacities[item] = seen(g.opacity);
}

// The pixels that a Gaussian may reach, in the format of a record, see records.cuh.
struct DrawnRange {
  bool reaches;
  unsigned columns, rows;

  __device__ explicit DrawnRange(const Projected<float>& g)
      : reaches(g.visible && g.left < g.right && g.top < g.bottom), columns(0), rows(0) {
    if (!reaches) return;
    const int right = ::min(truncate(g.right), kLargestEdge);
    columns = static_cast<unsigned>(truncate(g.left)) | static_cast<unsigned>(right) << 16;
    rows = static_cast<unsigned>(truncate(g.top)) | static_cast<unsigned>(truncate(g.bottom)) << 16;
  }
};

}  // namespace lumigrad::gaussians
