// Polynomials in three variables whose terms are all of one degree, for the expansion of winding numbers.
#pragma once

#include "meshes/build_point.h"

namespace lumigrad::meshes {

// xx xy xz yy yz zz
struct Square {
  double c[6] = {};

  void add(double factor, const Square& other) {
    for (int i = 0; i < 6; ++i) c[i] += factor * other.c[i];
  }
};
// xxx xxy xxz xyy xyz xzz yyy yyz yzz zzz
struct Cube {
  double c[10] = {};

  void add(double factor, const Cube& other) {
    for (int i = 0; i < 10; ++i) c[i] += factor * other.c[i];
  }
};

// (p.r)(q.r)
inline Square product(Point p, Point q) {
  return {{p.x * q.x, p.x * q.y + p.y * q.x, p.x * q.z + p.z * q.x, p.y * q.y, p.y * q.z + p.z * q.y, p.z * q.z}};
}
// (p.r) s(r)
inline Cube product(Point p, const Square& s) {
  const auto& [xx, xy, xz, yy, yz, zz] = s.c;
  return {{p.x * xx, p.x * xy + p.y * xx, p.x * xz + p.z * xx, p.x * yy + p.y * xy, p.x * yz + p.y * xz + p.z * xy,
           p.x * zz + p.z * xz, p.y * yy, p.y * yz + p.z * yy, p.y * zz + p.z * yz, p.z * zz}};
}

// Without the part that is a multiple of r.r: what is left is harmonic.
inline Square harmonic(Square s) {
  const double trace = (s.c[0] + s.c[3] + s.c[5]) / 3.0;
  for (const int i : {0, 3, 5}) s.c[i] -= trace;
  return s;
}
inline Cube harmonic(Cube s) {
  const Point trace = {(3.0 * s.c[0] + s.c[3] + s.c[5]) / 5.0, (3.0 * s.c[6] + s.c[1] + s.c[8]) / 5.0,
                       (3.0 * s.c[9] + s.c[2] + s.c[7]) / 5.0};
  for (const int i : {0, 3, 5}) s.c[i] -= trace.x;
  for (const int i : {6, 1, 8}) s.c[i] -= trace.y;
  for (const int i : {9, 2, 7}) s.c[i] -= trace.z;
  return s;
}

}  // namespace lumigrad::meshes
