// A vector of three doubles, for computations on the vertices as given.
#pragma once

#include "common/math/number.h"

namespace lumigrad::meshes {

struct Point {
  double x, y, z;
};

LG_INLINE Point point_at(const double* p) { return {p[0], p[1], p[2]}; }
LG_INLINE Point operator+(Point a, Point b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
LG_INLINE Point operator-(Point a, Point b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
LG_INLINE Point operator*(double s, Point a) { return {s * a.x, s * a.y, s * a.z}; }
LG_INLINE double dot(Point a, Point b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
LG_INLINE double squared_length(Point a) { return dot(a, a); }
LG_INLINE Point cross(Point a, Point b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

}  // namespace lumigrad::meshes
