// Gradients of spherical harmonics, and of means through the direction in which the harmonics are evaluated.
#pragma once

#include "gaussians/cuda/colors/rows.cuh"
#include "gaussians/cuda/receivers.cuh"

namespace lumigrad::gaussians {

// A Gaussian in a view, for the gradients of harmonics.
struct SeenGaussian {
  const CudaRecords& records;
  const Receiver& from;
  const Direction<float> direction;
  bool receives;

  // A colour that was clamped at 0 has no gradient.
  __device__ float gradient(int channel) const {
    return records.features_of(from.place)[channel] > 0.0f ? from.feature(channel) : 0.0f;
  }
};

// Writes Gradients::sh_factors of a Gaussian.
__device__ inline void write_factors(const SeenGaussian& seen, float* to) {
  const Triple<float>& d = seen.direction.d;
  to[0] = seen.receives ? d.x : 0.0f;
  to[1] = seen.receives ? d.y : 0.0f;
  to[2] = seen.receives ? d.z : 0.0f;
#pragma unroll
  for (int c = 0; c < kStagedChannels; ++c) to[3 + c] = seen.receives ? seen.gradient(c) : 0.0f;
}

// The gradients of a lane's coefficients, which the lane accesses on its own.
struct OwnRow {
  const float* sh;
  float* to;
  int channels, width, used;  // `used`: the number of coefficients that have an effect.
  bool present, written = false;

  __device__ OwnRow(const CudaCall& call, int64_t index, bool is_present, float* to_sh)
      : channels(call.scene.channels),
        width(call.scene.coefficients * channels),
        used(harmonics_of(call.settings.sh_degree)),
        present(is_present) {
    sh = call.scene.sh + index * width;
    to = to_sh == nullptr ? nullptr : to_sh + index * width;
  }

  // Writes or adds one view's terms of the coefficients' gradients, and returns its term of the mean's gradient.
  __device__ Triple<float> add_view(const SeenGaussian& seen) {
    if (!seen.receives) return {};
    const Harmonics<kMaxDegree> harmonics(seen.direction.d);
    float along[kHarmonics<kMaxDegree>] = {};
    for (int c = 0; c < channels; ++c) {
      const float v = seen.gradient(c);
#pragma unroll
      for (int k = 0; k < kHarmonics<kMaxDegree>; ++k) {
        if (k >= used) continue;
        along[k] = fma(sh[k * channels + c], v, along[k]);
        if (to != nullptr) put(to + k * channels + c, harmonics.value[k] * v, written);
      }
    }
    written = true;
    Triple<float> slope{};
    each_harmonic<kMaxDegree>(seen.direction.d, [&](int k, float, const Triple<float>& g) {
      if (k < used) slope = {fma(g.x, along[k], slope.x), fma(g.y, along[k], slope.y), fma(g.z, along[k], slope.z)};
    });
    return direction_backward(seen.direction, slope);
  }

  // Sets the gradients of coefficients that no view has written to 0.
  __device__ void finish() const {
    if (!present || to == nullptr) return;
    for (int i = written ? used * channels : 0; i < width; ++i) to[i] = 0.0f;
  }
};

// The gradients of a lane's coefficients, in rows that the warp fetches and writes together.
template <int kDegree>
struct SharedRow {
  StagedRows<kDegree>& rows;
  unsigned present, written = 0;  // Lanes, as bits.
  WarpRows<const float4> sh;
  WarpRows<float4> to;

  __device__ SharedRow(const CudaCall& call, int64_t index, bool is_present, float* to_sh)
      : rows(staged_rows<kDegree>()),
        present(__ballot_sync(kWholeWarp, is_present)),
        sh(call.scene.sh, __shfl_sync(kWholeWarp, index, 0), call.scene),
        to(to_sh, __shfl_sync(kWholeWarp, index, 0), call.scene) {}

  __device__ Triple<float> add_view(const SeenGaussian& seen) {
    const unsigned lanes = __ballot_sync(kWholeWarp, seen.receives);
    if (lanes == 0) return {};
    rows.load(sh, lanes);
    Triple<float> slope{};
    if (seen.receives) slope = replace_by_gradient(seen);
    if (to.first != nullptr) rows.store(to, lanes, written);
    written |= lanes;
    return seen.receives ? direction_backward(seen.direction, slope) : Triple<float>{};
  }

  __device__ void finish() {
    if (to.first == nullptr) return;
    rows.clear_behind(to, present);
    const unsigned rest = present & ~written;
    if (rest == 0) return;
    rows.fill(lane_index(), [](int, int) { return 0.0f; });
    rows.store(to, rest, 0);
  }

 private:
  // Replaces the lane's coefficients by their gradients, and returns the direction's gradient.
  __device__ Triple<float> replace_by_gradient(const SeenGaussian& seen) {
    float v[kStagedChannels], along[kHarmonics<kDegree>] = {};
#pragma unroll
    for (int c = 0; c < kStagedChannels; ++c) v[c] = seen.gradient(c);
    rows.each_value(lane_index(), [&](int k, int c, float value) { along[k] = fma(value, v[c], along[k]); });
    Triple<float> slope{};
    float harmonics[kHarmonics<kDegree>];
    each_harmonic<kDegree>(seen.direction.d, [&](int k, float value, const Triple<float>& g) {
      slope = {fma(g.x, along[k], slope.x), fma(g.y, along[k], slope.y), fma(g.z, along[k], slope.z)};
      harmonics[k] = value;
    });
    if (to.first != nullptr) rows.fill(lane_index(), [&](int k, int c) { return harmonics[k] * v[c]; });
    return slope;
  }
};

}  // namespace lumigrad::gaussians
