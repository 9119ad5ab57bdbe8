// The colours of records: spherical harmonics evaluated in the direction from the camera.
#pragma once

#include "gaussians/cuda/colors/rows.cuh"

namespace lumigrad::gaussians {

// The direction in which a view's camera sees a Gaussian.
__device__ inline Triple<float> direction_of(const CudaCall& call, const GaussianPlace& place, int64_t index) {
  const Pose& pose = call.scene.poses[place.outer * call.scene.slices + place.slice];
  return direction_to(pose, mean_of(call.scene, index)).d;
}

// Writes the colours of a warp's Gaussians from spherical harmonics, whose rows the warp fetches together. The whole
// warp must call it; lanes that are not drawn write nothing.
template <int kDegree>
__device__ inline void write_colors(const CudaCall& call, const CudaRecords& to, const GaussianPlace& place,
                                    const Placed& placed) {
  const unsigned lanes = __ballot_sync(kWholeWarp, placed.drawn);
  if (lanes == 0) return;
  StagedRows<kDegree>& rows = staged_rows<kDegree>();
  const int64_t count = call.scene.count, scene = call.view[place.outer].scene * count;
  rows.load({call.scene.sh, scene + __shfl_sync(kWholeWarp, place.number, 0), call.scene}, lanes);
  if (!placed.drawn) return;
  const Harmonics<kDegree> harmonics(direction_of(call, place, scene + place.number));
  float sums[kStagedChannels] = {0.5f, 0.5f, 0.5f};
  rows.each_value(lane_index(), [&](int k, int c, float value) { sums[c] = fma(harmonics.value[k], value, sums[c]); });
#pragma unroll
  for (int c = 0; c < kStagedChannels; ++c) to.set_color(placed.place, c, max(sums[c], 0.0f));
}

}  // namespace lumigrad::gaussians
