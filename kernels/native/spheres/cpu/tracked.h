// The spheres that the pixels of an image tracked, for compat's backward pass: by bands of the image, each with a
// record and a row of sums for every sphere that is tracked in the band.
#pragma once

#include "spheres/cpu/tiles.h"

LG_BEGIN_ENGINE(spheres)

// Lanes of pixels that track no sphere use records and rows of no sphere.
inline constexpr int kNoSphere = kLanes;

// Fields of a copied record that replace fields unused by backward.
namespace tracked_record {
enum { kCameraWeight = compat_record::kMaxSquare, kWide = compat_record::kNear };
}

struct TrackedBands {
  int count;
  int first[kMaxParts + 1];       // Rows of blocks.
  int64_t starts[kMaxParts + 1];  // First row of sums of each band.
  int64_t spheres;                // N
  int32_t* places;  // [bands, N] first the number of pixels, then the row within the band, from kNoSphere on, or 0.
  float* records;   // [rows, 16]
  float* rows;      // [rows, width]: dL/d centre (3), radius, opacity, then K colours
  int width;

  LG_INLINE int32_t* places_of(int band) const { return places + band * spheres; }
  LG_INLINE float* row(int band, int place) const { return rows + (starts[band] + place) * width; }
  LG_INLINE float* record(int band, int place) const { return records + (starts[band] + place) * kRecordFloats; }
};

// Divides the image into bands, and counts in `touched` the pixels in which each sphere is tracked.
TrackedBands count_tracked(const Camera& camera, const Settings& settings, const Scene& scene, const float* info,
                           int32_t* touched, Workspace& workspace);
// Gives the spheres of each band their rows and copies of their records.
void place_tracked(const Prepared& prepared, const int32_t* touched, TrackedBands& bands, Workspace& workspace);
// Computes gradients from the sums of pairs. `camera_sums` are the rays' sums, and become the camera's.
void finish_tracked(const Camera& camera, const Scene& scene, const Gradients& to, const TrackedBands& bands,
                    double* camera_sums);

LG_END
