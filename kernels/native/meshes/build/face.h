// Values of single faces, on the host and on a device.
#pragma once

#include <cmath>

#include "common/math/number.h"
#include "meshes/build/point.h"

namespace lumigrad::meshes {

// The angle of the direction (x, y), y >= 0, in [0, pi], accurate to 3e-7, without branches; 0 for (0, 0).
LG_INLINE float angle_of(float y, float x) {
  const float ax = x < 0.0f ? -x : x;
  const float large = ax > y ? ax : y, small = ax > y ? y : ax;
  const float t = small / (large > 1e-37f ? large : 1e-37f), z = t * t;
  // atan(t) / t for t in [0, 1]; minimax polynomial.
  float p = 0.002903447f;
  p = p * z - 0.016282598f;
  p = p * z + 0.04303872f;
  p = p * z - 0.07533623f;
  p = p * z + 0.10654654f;
  p = p * z - 0.14207128f;
  p = p * z + 0.19993053f;
  p = p * z - 0.33333093f;
  p = p * z + 1.0f;
  const float r = t * p, from_axis = y > ax ? 1.57079633f - r : r;
  return x < 0.0f ? 3.14159265f - from_axis : from_axis;
}

// Whether a face has an area, i.e. its height exceeds the rounding error of its longest edge.
LG_INLINE bool has_area(Point a, Point b, Point c) {
  constexpr double kNoHeight = 1e-12;
  const double ab = squared_length(b - a), bc = squared_length(c - b), ca = squared_length(a - c);
  const double two = ab > bc ? ab : bc, longest = two > ca ? two : ca;
  return std::sqrt(squared_length(cross(b - a, c - a))) > kNoHeight * longest;
}

// A face whose height is below this fraction of its longest edge gets no normal, which would depend on the rounding of
// its corners to float.
inline constexpr double kLeastHeight = 1e-6;

}  // namespace lumigrad::meshes
