// Places next to faces from which rays are cast, on the host and on a device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/math/number.h"
#include "meshes/build/point.h"

namespace lumigrad::meshes {

// A ray skips faces that are nearer than this fraction of the extent, since they are at its start.
inline constexpr double kAtStart = 1e-9;

// Whether a part of this size and area is inside out. A volume below a fraction of size times area is a rounding error.
LG_INLINE bool is_inside_out(double volume, double size, double area) { return volume < -1e-13 * size * area; }

// The number of places that are tested for self-intersections, in a mesh of this many faces.
inline int64_t place_count(int64_t faces) {
  constexpr int64_t kMost = 1024;
  return std::min({2 * faces, 256 + faces / 256, kMost});
}

// Returns one of three directions, along no axis, edge or diagonal.
LG_INLINE Point direction_of(int64_t number) {
  constexpr double kDirections[3][3] = {{0.5406, 0.7341, 0.4108}, {-0.6917, 0.3213, 0.6467}, {0.2631, -0.6429, 0.7194}};
  const double* d = kDirections[number % 3];
  return {d[0], d[1], d[2]};
}

// Picks one of the places on a face with corner a and edges u and v: in its middle, and near its corners.
inline constexpr int64_t kPlacesOnFace = 4;
LG_INLINE Point place_on(Point a, Point u, Point v, int64_t which) {
  constexpr double kShares[kPlacesOnFace][2] = {{1.0 / 3.0, 1.0 / 3.0}, {0.05, 0.05}, {0.9, 0.05}, {0.05, 0.9}};
  const double* share = kShares[which % kPlacesOnFace];
  return a + share[0] * u + share[1] * v;
}

}  // namespace lumigrad::meshes
