// Computes the records of surfels on the device, with a thread for each view and Gaussian.
#include "common/cuda/launch.h"
#include "gaussians/cuda/projected.cuh"
#include "gaussians/cuda/reach.cuh"
#include "gaussians/cuda/surfels/stages.h"
#include "gaussians/math/surfel_project.h"

namespace lumigrad::gaussians {
namespace {

__device__ inline void write_features(const CudaRecords& to, int64_t place, const ProjectedSurfel<float>& s,
                                      const SlicePose& slice) {
  float* features = to.features_of(place);
  float* next = features + to.features.colors;
  if (to.features.depth) *next++ = s.g.depth;
  for (int k = 0; to.features.normals && k < 3; ++k) {
    const double* r = slice.rotation + 3 * k;
    const Triple<float> row = {static_cast<float>(r[0]), static_cast<float>(r[1]), static_cast<float>(r[2])};
    *next++ = dot(row, s.shape.normal);
  }
  while (next < features + to.stride) *next++ = 0.0f;
}

// Writes the record of a surfel in a view.
__device__ inline void store_surfel(const ProjectTarget& to, int64_t place, const ProjectedSurfel<float>& s,
                                    const Ellipse<float>& reach, const DrawnRange& range, float4* ellipses) {
  const float columns = __uint_as_float(range.columns), rows = __uint_as_float(range.rows);
  float fields[kRecordFloats] = {};
  s.write_record(fields);
  fields[kTilt] = s.tilt().x;
  fields[kTilt + 1] = s.tilt().y;
  fields[kColumns + kRangeAtEnd] = columns;
  fields[kRows + kRangeAtEnd] = rows;
  float4* record = to.records.records + kRecordQuarters * place;
  for (int i = 0; i < kRecordQuarters; ++i) {
    record[i] = make_float4(fields[4 * i], fields[4 * i + 1], fields[4 * i + 2], fields[4 * i + 3]);
  }
  float4* ellipse = ellipses + kEllipseQuarters * place;
  ellipse[0] = make_float4(reach.x, reach.y, reach.ux, reach.uy);
  ellipse[1] = make_float4(reach.vy, reach.log2_opacity, columns, rows);
  to.keys[place] = sortable(s.g.depth);
}

__global__ void __launch_bounds__(kGaussianThreads)
    project_surfels_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ ProjectTarget to,
                           float4* ellipses) {
  const GaussianPlace place = gaussian_place(call);
  const int view = place.outer;
  const int64_t count = call.scene.count, item = view * count + place.number;
  const bool finds = to.finds_places();
  const Placed placed = finds ? Placed{place.number >= 0, false, 0} : to.records.places.find(call, view, place);
  bool reaches = false, seen = false;
  unsigned tiles = 0;
  if (placed.drawn) {
    const Pose& pose = call.scene.poses[view * call.scene.slices + place.slice];
    const auto gaussian = gaussian_of<false>(call.scene, call.view[view].scene * count + place.number);
    const ProjectedSurfel<float> s = project_surfel(call.view[view], pose, call.settings, gaussian);
    const DrawnRange range(s.g);
    const Ellipse<float> reach = {s.reach_x, s.reach_y, s.g.ux, s.g.uy, s.g.vy, s.g.log2_opacity};
    if (finds) {
      write_outputs(to.outputs, item, s.g);
    } else {
      store_surfel(to, placed.place, s, reach, range, ellipses);
      write_features(to.records, placed.place, s, call.scene.slice_poses[place.slice]);
      to.records.places.items[placed.place] = static_cast<unsigned>(item);
    }
    reaches = range.reaches;
    seen = s.g.visible;
    if (reaches) tiles = EllipseTiles(reach, range_of(range.columns, range.rows), to.limits).count();
  }
  if (finds) to.records.places.note(call, place, reaches, seen, to.drawn);
  count_tiles(to.counts, placed.drawn, placed.place, tiles);
}

}  // namespace

void cuda_project_surfels(const CudaCall& call, const ProjectTarget& to, float4* ellipses, cudaStream_t stream) {
  launch(project_surfels_kernel, static_cast<unsigned>(call.views * call.blocks), kGaussianThreads, 0, stream, call, to,
         ellipses);
}

}  // namespace lumigrad::gaussians
