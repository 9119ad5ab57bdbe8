// The spheres that the pixels of an image tracked, as compat's backward pass needs them: by bands of the image, each
// with a record and a row of sums for every sphere that is tracked in it.
#pragma once

#include "spheres/cpu/tiles.h"

LG_BEGIN_ENGINE(spheres)

// Lanes of pixels that track no sphere have a record and a row that belong to none.
inline constexpr int kNoSphere = kLanes;

// Fields of a copy of a record that stand in place of those that backward does not use.
namespace tracked_record {
enum { kCameraWeight = compat_record::kMaxSquare, kWide = compat_record::kNear };
}

struct TrackedBands {
  int count;
  int first[kMaxParts + 1];       // Rows of blocks.
  int64_t starts[kMaxParts + 1];  // First row of sums of each band.
  int64_t spheres;                // N
  int32_t* places;  // [bands, N] row within the band, from kNoSphere on; 0: not tracked. At first the number of pixels.
  float* records;   // [rows, 16]
  float* rows;      // [rows, width]: dL/d centre (3), radius, opacity, then K colours
  int width;

  LG_INLINE int32_t* places_of(int band) const { return places + band * spheres; }
  LG_INLINE float* row(int band, int place) const { return rows + (starts[band] + place) * width; }
  LG_INLINE float* record(int band, int place) const { return records + (starts[band] + place) * kRecordFloats; }
};

// Divides the image, and counts in how many pixels each sphere is tracked, in `touched`.
TrackedBands count_tracked(const Camera& camera, const Settings& settings, const Scene& scene, const float* info,
                           int32_t* touched, Workspace& workspace);
// Gives the spheres of each band their rows and copies of their records.
void place_tracked(const Prepared& prepared, const int32_t* touched, TrackedBands& bands, Workspace& workspace);
// Gradients from the sums of pairs. `camera_sums` are those of the rays, and become those of the camera.
void finish_tracked(const Camera& camera, const Scene& scene, const Gradients& to, const TrackedBands& bands,
                    double* camera_sums);

LG_END
