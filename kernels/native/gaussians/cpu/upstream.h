// The upstream gradients of a tile's pixels: of the features and of the transmittance.
#pragma once

#include "gaussians/cpu/images.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)

// A block's pixels: x, y, transmittance before the next ellipse, the gradients times the remaining part, then the
// gradients of the features.
enum UpstreamField { kUpX, kUpY, kUpTransmittance, kUpRest, kUpFeatures };

struct UpstreamSource {
  const View& view;
  int number;
  const Settings& settings;
  const Upstream& up;
  const Features& features;
};

// Adds a feature's gradient times its rendered value to the remaining part.
LG_INLINE void load_feature(Pack gradient, Pack rendered, float* to, Pack& rest) {
  gradient.store(to);
  rest = fma(gradient, rendered, rest);
}

// Rendered colours include the background.
LG_INLINE void load_colors_up(const UpstreamSource& s, const BlockPixels& block, float* to, Pack& rest) {
  const int channels = s.features.colors;
  if (s.up.d_color == nullptr) {
    for (int c = 0; c < channels; ++c) Pack(0.0f).store(to + c * kLanes);
  } else if (channels == 3) {
    const Colors3 v = load_colors_3(block, s.up.d_color), rendered = load_colors_3(block, s.up.color);
    load_feature(v.r, rendered.r, to, rest);
    load_feature(v.g, rendered.g, to + kLanes, rest);
    load_feature(v.b, rendered.b, to + 2 * kLanes, rest);
  } else {
    for (int c = 0; c < channels; ++c) {
      load_feature(load_channel(block, s.up.d_color, c, channels), load_channel(block, s.up.color, c, channels),
                   to + c * kLanes, rest);
    }
  }
}

// Loads the block at (x, y); adds the gradient of the background to `background`, if requested.
LG_INLINE void load_block(const UpstreamSource& s, int x, int y, float* to, double* background) {
  const Pack centre = Pack(s.settings.pixel_center), zero = Pack(0.0f);
  (lane_x() + Pack(static_cast<float>(x)) + centre).store(to + kUpX * kLanes);
  (lane_y() + Pack(static_cast<float>(y)) + centre).store(to + kUpY * kLanes);
  Pack(1.0f).store(to + kUpTransmittance * kLanes);
  if (x >= s.view.width || y >= s.view.height) {
    for (int f = 0; f <= s.features.total(); ++f) zero.store(to + (kUpRest + f) * kLanes);
    return;
  }
  const BlockPixels block(s.view, s.number, x, y);
  const Upstream& up = s.up;
  const Pack left = load_plane(block, up.transmittance);
  Pack v_left = load_plane(block, up.d_transmittance) - load_plane(block, up.d_alpha), rest = zero;
  float* features = to + kUpFeatures * kLanes;
  load_colors_up(s, block, features, rest);
  float* next = features + s.features.colors * kLanes;
  if (s.features.depth) {
    const Pack depth = load_plane(block, up.depth);
    Pack v_depth = load_plane(block, up.d_depth);
    if (up.d_expected_depth != nullptr) {
      const ExpectedDepthGradient<Pack> v =
          expected_depth_backward(depth, left, load_plane(block, up.d_expected_depth));
      v_depth = v_depth + v.depth;
      v_left = v_left + v.transmittance;
    }
    load_feature(v_depth, depth, next, rest);
    next += kLanes;
  }
  if (s.features.inverse_depth) {
    load_feature(load_plane(block, up.d_inverse_depth), load_plane(block, up.inverse_depth), next, rest);
    next += kLanes;
  }
  if (s.features.surfels && s.features.normals) {
    for (int k = 0; k < 3; ++k) zero.store(next + k * kLanes);
    if (up.d_normals != nullptr) {
      const Colors3 v = load_colors_3(block, up.d_normals), rendered = load_colors_3(block, up.normals);
      load_feature(v.r, rendered.r, next, rest);
      load_feature(v.g, rendered.g, next + kLanes, rest);
      load_feature(v.b, rendered.b, next + 2 * kLanes, rest);
    }
  }
  fma(left, v_left, rest).store(to + kUpRest * kLanes);
  if (background == nullptr) return;
  for (int c = 0; c < s.features.colors; ++c) {
    background[c] += static_cast<double>(sum(Pack::load(features + c * kLanes) * left));
  }
}

LG_END
