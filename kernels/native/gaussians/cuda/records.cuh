// The records of the Gaussians that reach pixels, on the device.
#pragma once

#include "gaussians/cuda/places.cuh"
#include "gaussians/math/blend.h"
#include "gaussians/math/ray.h"

namespace lumigrad::gaussians {

// In place of the ellipse's half width and half height, records hold the range of pixels that it may reach, as bits:
// x0 | x1 << 16 and y0 | y1 << 16. Both are 0 if it reaches no pixel.
inline constexpr int kColumns = record::kHalfWidth, kRows = record::kHalfHeight;
// Along rays and for surfels, the last two fields hold the range.
inline constexpr int kRangeAtEnd = kRecordFloats - 2 - kColumns;
inline constexpr int kRecordQuarters = kRecordFloats / 4;

// The largest edge of a range; a lidar may have one more column, which is in a tile that begins before it.
inline constexpr int kLargestEdge = 65535;

struct PixelRange {
  int x0, x1, y0, y1;  // [x0, x1) x [y0, y1)
  __device__ bool holds(int x, int y) const { return x >= x0 && x < x1 && y >= y0 && y < y1; }
};

// Passed to kernels by value. The items of tile lists are Gaussians' places.
struct CudaRecords {
  Features features;
  int stride;            // Floats per row of more_features; 0 if the features are in the records.
  float4* records;       // [places, 4]
  float* more_features;  // [places, stride]
  CudaPlaces places;

  __device__ float* record(int64_t item) const { return &records[kRecordQuarters * item].x; }
  __device__ const float* range_fields(int64_t item) const {
    return record(item) + (features.rays || features.surfels ? kRangeAtEnd : 0);
  }
  __device__ PixelRange range(int64_t item) const;
  __device__ void set_color(int64_t item, int channel, float value) const { features_of(item)[channel] = value; }
  __device__ float* features_of(int64_t item) const {
    return stride > 0 ? more_features + item * stride : record(item) + record::kFeatures;
  }
};

// Floats per item in the separate array of features, a multiple of four; 0 if the features fit into the record.
constexpr int feature_stride(const Features& features) {
  if (features.rays || features.surfels) return features.total() / 4 * 4 + 4;
  return features.total() > kInlineFeatures ? (features.total() + 3) / 4 * 4 : 0;
}

inline CudaRecords records_of(const CudaPass& pass) {
  const CudaPlaces places{pass.before.data(), pass.lanes.data(), pass.items.data(),
                          static_cast<unsigned>(pass.items.size())};
  return {pass.features, feature_stride(pass.features), pass.records.data(), pass.more_features.data(), places};
}

__device__ inline PixelRange range_of(unsigned columns, unsigned rows) {
  return {static_cast<int>(columns & 0xFFFF), static_cast<int>(columns >> 16), static_cast<int>(rows & 0xFFFF),
          static_cast<int>(rows >> 16)};
}
__device__ inline PixelRange range_of(const float* record) {
  return range_of(__float_as_uint(record[kColumns]), __float_as_uint(record[kRows]));
}
__device__ inline PixelRange CudaRecords::range(int64_t item) const { return range_of(range_fields(item)); }
__device__ inline bool reaches_pixels(const PixelRange& r) { return r.x0 < r.x1; }

__device__ inline Triple<float> mean_of(const Scene& scene, int64_t index) {
  const float* m = scene.means + 3 * index;
  return {m[0], m[1], m[2]};
}

}  // namespace lumigrad::gaussians
