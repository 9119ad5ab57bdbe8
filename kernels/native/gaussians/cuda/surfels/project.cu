// Computes records of surfels on the device: a thread for each view and Gaussian.
#include "common/cuda/launch.h"
#include "gaussians/cuda/projected.cuh"
#include "gaussians/cuda/reach.cuh"
#include "gaussians/cuda/surfels/stages.h"
#include "gaussians/math/surfel_project.h"

namespace lumigrad::gaussians {
namespace {

__device__ inline void write_features(const CudaRecords& to, int64_t item, const ProjectedSurfel<float>& s,
                                      const SlicePose& slice) {
  float* features = to.features_of(item);
  float* next = features + to.features.colors;
  if (to.features.depth) *next++ = s.g.depth;
  for (int k = 0; to.features.normals && k < 3; ++k) {
    const double* r = slice.rotation + 3 * k;
    const Triple<float> row = {static_cast<float>(r[0]), static_cast<float>(r[1]), static_cast<float>(r[2])};
    *next++ = dot(row, s.shape.normal);
  }
  while (next < features + to.stride) *next++ = 0.0f;
}

// Writes all that the projection of a surfel in a view yields; returns the number of tiles that it overlaps.
__device__ inline unsigned store_surfel(const ProjectTarget& to, int64_t item, const ProjectedSurfel<float>& s,
                                        float4* ellipses) {
  write_outputs(to.outputs, item, s.g);
  const DrawnRange range(s.g);
  const float columns = __uint_as_float(range.columns), rows = __uint_as_float(range.rows);
  float fields[kRecordFloats] = {};
  s.write_record(fields);
  fields[kTilt] = s.tilt().x;
  fields[kTilt + 1] = s.tilt().y;
  fields[kColumns + kRangeAtEnd] = columns;
  fields[kRows + kRangeAtEnd] = rows;
  float4* record = to.records.records + kRecordQuarters * item;
  for (int i = 0; i < kRecordQuarters; ++i) {
    record[i] = make_float4(fields[4 * i], fields[4 * i + 1], fields[4 * i + 2], fields[4 * i + 3]);
  }
  const Ellipse<float> reach = {s.reach_x, s.reach_y, s.g.ux, s.g.uy, s.g.vy, s.g.log2_opacity};
  float4* ellipse = ellipses + kEllipseQuarters * item;
  ellipse[0] = make_float4(reach.x, reach.y, reach.ux, reach.uy);
  ellipse[1] = make_float4(reach.vy, reach.log2_opacity, columns, rows);
  to.keys[item] = range.reaches ? sortable(s.g.depth) : kBehindAll;
  return range.reaches ? EllipseTiles(reach, range_of(range.columns, range.rows), to.limits).count() : 0;
}

__global__ void __launch_bounds__(kGaussianThreads)
    project_surfels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ ProjectTarget to,
                           float4* ellipses) {
  const GaussianPlace place = gaussian_place(call);
  const int view = place.outer;
  const int64_t count = call.scene.count, item = view * count + place.number;
  unsigned tiles = 0;
  if (place.number >= 0) {
    const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
    const auto gaussian = gaussian_of<false>(call.scene, call.view[view].scene * count + place.number);
    const ProjectedSurfel<float> s = project_surfel(call.view[view], pose, call.settings, gaussian);
    tiles = store_surfel(to, item, s, ellipses);
    write_features(to.records, item, s, call.scene.slice_poses[place.slice]);
  }
  count_tiles(to.counts, place.number >= 0, item, tiles);
}

}  // namespace

void cuda_project_surfels(const CudaCall& call, const ProjectTarget& to, float4* ellipses, cudaStream_t stream) {
  launch(project_surfels_kernel, static_cast<unsigned>(call.views * call.blocks), kGaussianThreads, 0, stream, call, to,
         ellipses);
}

}  // namespace lumigrad::gaussians
