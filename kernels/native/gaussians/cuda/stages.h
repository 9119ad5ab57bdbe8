// The stages of a call on the device, in the order in which they run; each queues its kernels and returns.
#pragma once

#include "gaussians/cuda/records.cuh"

namespace lumigrad::gaussians {

// Passed to kernels by value: limits of where a Gaussian is drawn, beyond which it is not listed in tiles.
struct ReachLimits {
  float log2_alpha_min;
  float pixel_center;  // Coordinate of the first pixel's centre.
};

// Passed to kernels by value: the outputs of the projection kernels, which run twice. First they find the Gaussians
// that have places, and write the requested outputs per Gaussian; then they write the records and keys of these
// Gaussians.
struct ProjectTarget {
  CudaRecords records;
  Outputs outputs;
  unsigned long long* drawn;  // The number of places, counted by the first pass; null in the second.
  unsigned* keys;             // [places] keys that sort items by depth.
  TileCounts counts;          // Counts of tiles; along rays, `cuda_rays` writes them.
  ReachLimits limits;

  __device__ bool finds_places() const { return drawn != nullptr; }
};

// Lists are differentiated in segments of kSegment entries, in parallel, so that long lists do not take long. For each
// segment except a list's first, the forward pass keeps each pixel's transmittance at the start of the segment, and its
// sums of the features within the segment.
inline constexpr int kSegment = 256;
inline constexpr int kHalfPixels = kDeviceTile * kDeviceTile / 2;

inline constexpr unsigned kNoTile = 0xFFFFFFFFu;

// Passed to kernels by value. Segment s of a list has the place first / kSegment + s - 1, which is unique. Tiles that
// go through all items have no segments.
struct Segments {
  int places;       // 0 if each list has one segment.
  int fields;       // The transmittance and the features.
  float* values;    // [places, 2 halves, fields, kHalfPixels]
  unsigned* tiles;  // [places] the tile of each place, or kNoTile.

  __device__ int place(unsigned list_first, int segment) const {
    return static_cast<int>(list_first / kSegment) + segment - 1;
  }
  // The value of the lane's pixel k.
  __device__ float& value(int place, unsigned half, int field, int k) const {
    return values[((static_cast<int64_t>(place) * 2 + half) * fields + field) * kHalfPixels + k * kWarp + lane_index()];
  }
};

inline Segments segments_of(const CudaPass& pass) {
  return {static_cast<int>(pass.segment_tiles.size()), 1 + pass.features.total(), pass.segments.data(),
          pass.segment_tiles.data()};
}

// Projects the Gaussians; after the second pass, returns whether the records already have their colours.
bool cuda_project(const CudaCallData& data, const ProjectTarget& to, cudaStream_t stream);
// Writes the colours of the records.
void cuda_colors(const CudaCall& call, const CudaRecords& records, cudaStream_t stream);
// Blends the images. `lasts` receives for each pixel the position in its tile's list from which nothing contributes to
// it.
void cuda_draw(const CudaCall& call, const CudaRecords& records, const TileLists& lists, const Segments& segments,
               const Outputs& outputs, int* lasts, cudaStream_t stream);

// The number of fields of ray_row and surfel_row, rounded up to a power of two for sums over warps.
inline constexpr int kRayFields = 16, kSurfelFields = 16;

// Sums over the pixels of each item. Passed to kernels by value.
struct CudaRows {
  int fields;  // Fields of a row before the features: gradient_row's, or ray_row's or surfel_row's up to kRayFields.
  int width;   // Floats of a row.
  bool needs_abs;    // Whether kAbsX and kAbsY are summed.
  float* rows;       // [places + 1, width]; the last row is 0, for Gaussians without a place.
  float* pair_rows;  // [pairs, width] for deterministic sums: tiles write to it instead of adding to `rows`; else null
  int32_t* touched;  // [S, N] 1 if a view contributes to the Gaussian's gradients

  __device__ void touch(const CudaCall& call, const CudaPlaces& places, unsigned place) const {
    const unsigned item = places.items[place], n = static_cast<unsigned>(call.scene.count);
    touched[call.view[item / n].scene * static_cast<int64_t>(n) + item % n] = 1;
  }
};

void cuda_blend_backward(const CudaCall& call, const CudaRecords& records, const TileLists& lists,
                         const Segments& segments, const Upstream& upstream, const int* lasts, const CudaRows& rows,
                         cudaStream_t stream);
// Writes dL/d background.
void cuda_background_backward(const CudaCall& call, const Upstream& upstream, float* background, cudaStream_t stream);

// Sums over a block of Gaussians (see GaussianPlace) for the gradients of poses, lenses and projections, in this order:
// rotation (9), translation (3), fx, fy, cx, cy, projection (12; of surfels Gradients::normals, 9), eye (3).
namespace block_sum {
enum Field { kRotation = 0, kTranslation = 9, kIntrinsics = 12, kProjection = 16, kEye = 28, kFields = 32 };
// Sensors have these sums in place of intrinsics and projection, see kSliceMotionSums; their lenses have other sums.
inline constexpr int kMotion = kIntrinsics;
}  // namespace block_sum

// Computes gradients of the scene from rows, and block sums [V, blocks, block_sum::kFields] unless null. Returns
// whether the gradients include the colours'.
bool cuda_project_backward(const CudaCallData& data, const CudaRecords& records, const Upstream& upstream,
                           const CudaRows& rows, const Gradients& gradients, double* block_sums, cudaStream_t stream);
// Computes the same for sensors' views, and the sums Gradients::sensors. `motion_rows` [places + 1, kRayFields] are the
// sums over each item's pixels for its slice (see kSliceMotionSums), or null.
void cuda_sensor_backward(const CudaCallData& data, const CudaRecords& records, const Upstream& upstream,
                          const CudaRows& rows, const float* motion_rows, const Gradients& gradients,
                          double* block_sums, cudaStream_t stream);
// Computes gradients of colours or spherical harmonics. The gradients of the direction to the camera are added to the
// gradients of the means.
void cuda_colors_backward(const CudaCall& call, const CudaRecords& records, const CudaRows& rows,
                          const Gradients& gradients, double* block_sums, cudaStream_t stream);
// Computes the gradients of poses, intrinsics and projections from block sums.
void cuda_sum_blocks(const CudaCall& call, const double* block_sums, const Gradients& gradients, cudaStream_t stream);

}  // namespace lumigrad::gaussians
