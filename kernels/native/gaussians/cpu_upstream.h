// What the pixels of a tile are differentiated with: gradients of the features and of what shines through.
#pragma once

#include "gaussians/cpu_images.h"

LG_BEGIN_ENGINE(gaussians)

// A block's pixels: x, y, transmittance before the next ellipse, the gradients times all that is still to come, then
// the gradients of the features.
enum UpstreamField { kUpX, kUpY, kUpTransmittance, kUpRest, kUpFeatures };

struct UpstreamSource {
  const View& view;
  int number;
  const Settings& settings;
  const Scene& scene;
  const Upstream& up;
  const Features& features;
  bool background;  // Its gradient is wanted.
};

// One pixel: gradients of features into lane `lane` of `block`; what it starts from into kUpRest.
LG_INLINE void load_pixel(const UpstreamSource& s, int64_t pixel, int lane, float* block, double* background) {
  const Upstream& up = s.up;
  const int channels = s.features.colors;
  const float left = up.transmittance[pixel], alpha = 1.0f - left;
  float* to = block + kUpFeatures * kLanes + lane;
  float rest = 0.0f;
  float v_alpha = up.d_alpha != nullptr ? up.d_alpha[pixel] : 0.0f;
  if (up.d_transmittance != nullptr) v_alpha -= up.d_transmittance[pixel];
  if (up.d_color != nullptr) {
    for (int c = 0; c < channels; ++c) {
      const float v = up.d_color[pixel * channels + c];
      to[c * kLanes] = v;
      // The rendered colour contains what the background adds.
      rest = fma(v, up.color[pixel * channels + c], rest);
      if (background != nullptr) background[c] += static_cast<double>(v * left);
    }
  }
  float* next = to + channels * kLanes;
  if (s.features.depth) {
    float v = up.d_depth != nullptr ? up.d_depth[pixel] : 0.0f;
    if (up.d_expected_depth != nullptr) {
      const float divisor = alpha > kMinAlpha ? alpha : kMinAlpha, v_expected = up.d_expected_depth[pixel] / divisor;
      v += v_expected;
      if (alpha > kMinAlpha) v_alpha -= v_expected * up.depth[pixel] / divisor;
    }
    *next = v;
    if (v != 0.0f) rest = fma(v, up.depth[pixel], rest);
    next += kLanes;
  }
  if (s.features.inverse_depth && up.d_inverse_depth != nullptr) {
    *next = up.d_inverse_depth[pixel];
    rest = fma(*next, up.inverse_depth[pixel], rest);
  }
  block[kUpRest * kLanes + lane] = rest - left * v_alpha;
}

LG_INLINE void load_block(const UpstreamSource& s, int x, int y, float* block, double* background) {
  const int total = s.features.total();
  for (int f = 0; f < total + 1; ++f) Pack(0.0f).store(block + (kUpRest + f) * kLanes);
  const Pack centre = Pack(s.settings.pixel_center);
  (lane_x() + Pack(static_cast<float>(x)) + centre).store(block + kUpX * kLanes);
  (lane_y() + Pack(static_cast<float>(y)) + centre).store(block + kUpY * kLanes);
  Pack(1.0f).store(block + kUpTransmittance * kLanes);
  if (x >= s.view.width || y >= s.view.height) return;
  each_pixel(s.view, s.number, x, y, [&](int64_t pixel, int lane) { load_pixel(s, pixel, lane, block, background); });
}

LG_END
