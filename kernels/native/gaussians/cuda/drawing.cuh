// The sums of a pixel while it is drawn, and its output to the images.
#pragma once

#include "gaussians/cuda/pixel.cuh"
#include "gaussians/math/blend.h"

namespace lumigrad::gaussians {

template <int kFeatures>
struct Pixel {
  float transmittance = 1.0f;
  float sums[kFeatures] = {};
  int contributors = 0;
  int recent = -1;  // The last contributor's number in the current batch, or -1.
  int last = 0;     // One past the list position of the last contributor from earlier batches, or 0.
  bool active;
};

// Adds Gaussian `i` of the batch, whose alpha is 2^power; returns its weight, or 0 if it ends the pixel.
template <int kFeatures>
__device__ inline float take(const CudaRecords& records, GaussianBatch& batch, int i, int first, float power,
                             const Limits& limits, Pixel<kFeatures>& pixel) {
  const float alpha = min(exp2_bounded(power), limits.alpha_max);
  const float next = fma(-alpha, pixel.transmittance, pixel.transmittance);
  if (next < limits.ends_below) {
    pixel.active = false;
    return 0.0f;
  }
  const float weight = alpha * pixel.transmittance;
  float features[kFeatures];
  load_features(records, batch.item(i), first, features);
#pragma unroll
  for (int c = 0; c < kFeatures; ++c) pixel.sums[c] = fma(weight, features[c], pixel.sums[c]);
  pixel.transmittance = next;
  pixel.recent = i;
  ++pixel.contributors;
  return weight;
}

// Maps 0..1 to 0..255, ties to even; values outside are clamped, and NaN becomes 0.
__device__ inline uint8_t level_of(float value) { return static_cast<uint8_t>(rintf(__saturatef(value) * 255.0f)); }

// Writes feature `f` of a pixel. `kSurfels`: normals may follow the depth.
template <bool kSurfels>
__device__ inline void write_feature(const CudaCall& call, const Features& features, const Outputs& out, int view,
                                     int64_t index, int f, float sum, float transmittance) {
  const int channels = features.colors;
  if (f < channels) {
    const float* background = call.scene.background;
    const float color =
        background != nullptr ? fma(transmittance, background[view * static_cast<int64_t>(channels) + f], sum) : sum;
    if (out.color != nullptr) out.color[index * channels + f] = color;
    if (out.color_levels != nullptr) out.color_levels[index * channels + f] = level_of(color);
  } else if (features.depth && f == channels) {
    if (out.depth != nullptr) out.depth[index] = sum;
    if (out.expected_depth != nullptr) out.expected_depth[index] = sum / max(1.0f - transmittance, kLeastAlpha);
  } else if (kSurfels) {
    const int axis = f - channels - features.depth;
    if (features.normals && axis < 3) out.normals[3 * index + axis] = sum;
  } else if (f < features.total() && out.inverse_depth != nullptr) {
    out.inverse_depth[index] = sum;
  }
}

template <bool kSurfels = false, int kFeatures>
__device__ inline void write_pixel(const CudaCall& call, const Features& features, const Outputs& out, int* lasts,
                                   int view, int64_t index, int first, const Pixel<kFeatures>& pixel) {
#pragma unroll
  for (int c = 0; c < kFeatures; ++c) {
    if (first + c >= features.total()) break;
    write_feature<kSurfels>(call, features, out, view, index, first + c, pixel.sums[c], pixel.transmittance);
  }
  if (first > 0) return;
  if (out.alpha != nullptr) out.alpha[index] = 1.0f - pixel.transmittance;
  if (out.transmittance != nullptr) out.transmittance[index] = pixel.transmittance;
  if (out.contributors != nullptr) out.contributors[index] = pixel.contributors;
  if (lasts != nullptr) lasts[index] = pixel.last;
}

}  // namespace lumigrad::gaussians
