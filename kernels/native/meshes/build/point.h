// A vector of three doubles, for computations on the vertices as given.
#pragma once

namespace lumigrad::meshes {

struct Point {
  double x, y, z;
};

inline Point point_at(const double* p) { return {p[0], p[1], p[2]}; }
inline Point operator+(Point a, Point b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
inline Point operator-(Point a, Point b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
inline Point operator*(double s, Point a) { return {s * a.x, s * a.y, s * a.z}; }
inline double dot(Point a, Point b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
inline double squared_length(Point a) { return dot(a, a); }
inline Point cross(Point a, Point b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }

}  // namespace lumigrad::meshes
