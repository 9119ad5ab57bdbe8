// Oriented boxes of leaves, aligned with the surface.
#pragma once

#include <algorithm>
#include <cmath>

#include "meshes/params.h"

namespace lumigrad::meshes {

// The range of a coordinate over the corners of a leaf's triangles.
inline void range_of(const float* triangles, int axis, float& low, float& high) {
  alignas(64) float lows[kWide], highs[kWide];
  for (int l = 0; l < kWide; ++l) {
    const float a = triangles[axis * kWide + l], b = a + triangles[(3 + axis) * kWide + l],
                c = a + triangles[(6 + axis) * kWide + l];
    const float ab = a < b ? a : b, most = a > b ? a : b;
    lows[l] = ab < c ? ab : c;
    highs[l] = most > c ? most : c;
  }
  low = lows[0];
  high = highs[0];
  for (int l = 1; l < kWide; ++l) {
    low = lows[l] < low ? lows[l] : low;
    high = highs[l] > high ? highs[l] : high;
  }
}

struct OrientedBox {
  float values[kOrientedFloats];  // Layout as in params.h.
};

// The corners of a leaf in the frame (tangent, cotangent, normal) around the middle of its box.
struct LeafFrame {
  float axes[3][3], middle[3];

  // [3 corners, 16 lanes]
  void project(const float* triangles, int axis, float out[3][kWide]) const {
    const float* r = axes[axis];
    for (int l = 0; l < kWide; ++l) {
      const float a = r[0] * (triangles[l] - middle[0]) + r[1] * (triangles[kWide + l] - middle[1]) +
                      r[2] * (triangles[2 * kWide + l] - middle[2]);
      const float u =
          r[0] * triangles[3 * kWide + l] + r[1] * triangles[4 * kWide + l] + r[2] * triangles[5 * kWide + l];
      const float v =
          r[0] * triangles[6 * kWide + l] + r[1] * triangles[7 * kWide + l] + r[2] * triangles[8 * kWide + l];
      out[0][l] = a;
      out[1][l] = a + u;
      out[2][l] = a + v;
    }
  }
  // Completes the unit vector n to an orthonormal frame (Duff et al. 2017).
  void complete(const float* n) {
    const float sign = std::copysign(1.0f, n[2]), s = -1.0f / (sign + n[2]), t = n[0] * n[1] * s;
    const float frame[3][3] = {{1.0f + sign * n[0] * n[0] * s, sign * t, -sign * n[0]},
                               {t, sign + n[1] * n[1] * s, -n[1]},
                               {n[0], n[1], n[2]}};
    for (int i = 0; i < 3; ++i) std::copy(frame[i], frame[i] + 3, axes[i]);
  }
  // Rotates the first two axes to the principal axes of the corners.
  void turn(const float* triangles) {
    alignas(64) float x[3][kWide], y[3][kWide];
    project(triangles, 0, x);
    project(triangles, 1, y);
    float sx = 0.0f, sy = 0.0f, xx = 0.0f, xy = 0.0f, yy = 0.0f;
    for (int c = 0; c < 3; ++c) {
      for (int l = 0; l < kWide; ++l) {
        sx += x[c][l];
        sy += y[c][l];
        xx += x[c][l] * x[c][l];
        xy += x[c][l] * y[c][l];
        yy += y[c][l] * y[c][l];
      }
    }
    constexpr float kShare = 1.0f / (3 * kWide);
    const float difference = (xx - sx * sx * kShare) - (yy - sy * sy * kShare), twice = 2.0f * (xy - sx * sy * kShare);
    const float length = std::sqrt(difference * difference + twice * twice);
    if (!(length > 0.0f)) return;
    const float cosine = std::sqrt(std::max(0.0f, 0.5f + 0.5f * difference / length));
    const float sine = std::copysign(std::sqrt(std::max(0.0f, 0.5f - 0.5f * difference / length)), twice);
    for (int k = 0; k < 3; ++k) {
      const float s = axes[0][k], t = axes[1][k];
      axes[0][k] = cosine * s + sine * t;
      axes[1][k] = cosine * t - sine * s;
    }
  }
};

// The box around the triangles of a leaf, whose corners lie between low and high; its third axis is along `direction`.
inline OrientedBox oriented_box(const float* triangles, const float* low, const float* high, const float* direction,
                                float widen) {
  LeafFrame frame;
  float length = 0.0f, normal[3] = {0.0f, 0.0f, 1.0f};
  for (int k = 0; k < 3; ++k) {
    frame.middle[k] = 0.5f * (low[k] + high[k]);
    length += direction[k] * direction[k];
  }
  length = std::sqrt(length);
  for (int k = 0; k < 3 && length > 1e-30f; ++k) normal[k] = direction[k] / length;
  frame.complete(normal);
  frame.turn(triangles);
  OrientedBox box;
  for (int i = 0; i < 3; ++i) {
    alignas(64) float at[3][kWide];
    frame.project(triangles, i, at);
    float least = at[0][0], most = at[0][0];
    for (int c = 0; c < 3; ++c) {
      for (int l = 0; l < kWide; ++l) {
        least = at[c][l] < least ? at[c][l] : least;
        most = at[c][l] > most ? at[c][l] : most;
      }
    }
    double offset = 0.5 * (static_cast<double>(least) + most);
    for (int k = 0; k < 3; ++k) {
      offset += static_cast<double>(frame.axes[i][k]) * frame.middle[k];
      box.values[3 * i + k] = frame.axes[i][k];
    }
    box.values[9 + i] = static_cast<float>(-offset);
    box.values[12 + i] = 0.5f * (most - least) + widen;
  }
  return box;
}

}  // namespace lumigrad::meshes
