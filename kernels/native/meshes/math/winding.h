// The generalised winding number of a mesh at a point: exact for a triangle, expanded for distant parts of the mesh
// (Barill et al. 2018, to the second derivative). N is float or a pack.
#pragma once

#include "meshes/math/vector.h"

LG_BEGIN_ENGINE(meshes)

// Rows of Tree::dipoles, for a part of the mesh around c, its centre of area. They are coefficients of polynomials in
// the vector r from the point to c. Integrals are over the part's surface, with points c + d and normals n:
// kDipoleNormal gives N(r) = integral of n.r, the other rows the harmonic parts of Q(r) = integral of (n.r)(d.r) and of
// C(r) = integral of (n.r)(d.r)^2. The winding number is N/r^3 + Q/r^5 + C/r^7; constant factors are included in the
// coefficients.
enum DipoleRow : int {
  kDipoleCentre = 0,
  kDipoleReach = 3,   // Squared distance from c beyond which the expansion holds.
  kDipoleNormal = 4,  // x y z
  kDipoleSquare = 7,  // xx xy xz yy yz zz
  kDipoleCube = 13,   // xxx xxy xxz xyy xyz xzz yyy yyz yzz zzz
  kDipoleRows = 23
};
// The expansion holds beyond this many radii of the part's bounding ball around c.
inline constexpr float kDipoleReachRadii = 3.0f;

// The winding number of a part whose centre is at r relative to the point; row(i) is its row i.
template <class N, class Row>
LG_INLINE N winding_of_part(Vec<N> r, const Row& row) {
  const auto linear = [&](int i) { return fma(row(i), r.x, fma(row(i + 1), r.y, row(i + 2) * r.z)); };
  // The terms of a square or a cube without x.
  const auto flat = [&](int i) { return fma(row(i), r.y, row(i + 1) * r.z); };
  const N zz = r.z * r.z, inverse = quick_inverse_sqrt(dot(r, r)), part = inverse * inverse;
  const N square = fma(r.x, linear(kDipoleSquare), fma(r.y, flat(kDipoleSquare + 3), row(kDipoleSquare + 5) * zz));
  const N with_x = fma(r.x, linear(kDipoleCube), fma(r.y, flat(kDipoleCube + 3), row(kDipoleCube + 5) * zz));
  const N cube = fma(r.x, with_x, fma(r.y * r.y, flat(kDipoleCube + 6), flat(kDipoleCube + 8) * zz));
  return fma(fma(cube, part, square), part, linear(kDipoleNormal)) * (part * inverse);
}

// The angle of the direction (x, y), in [-pi, pi]; 0 for (0, 0). Accurate to 3e-7.
template <class N>
LG_INLINE N angle_of_direction(N y, N x) {
  const N zero = N(0.0f), pi = N(3.14159265f);
  const N ax = abs(x), ay = abs(y);
  const N t = min(ax, ay) * quick_inverse(max(max(ax, ay), N(1e-30f))), z = t * t;
  // atan(t) / t for t in [0, 1]; minimax polynomial.
  N p = N(0.002903447f);
  p = fma(p, z, N(-0.016282598f));
  p = fma(p, z, N(0.04303872f));
  p = fma(p, z, N(-0.07533623f));
  p = fma(p, z, N(0.10654654f));
  p = fma(p, z, N(-0.14207128f));
  p = fma(p, z, N(0.19993053f));
  p = fma(p, z, N(-0.33333093f));
  p = fma(p, z, N(1.0f));
  const N first = t * p, second = select(ay > ax, N(0.5f) * pi - first, first);
  const N half = select(x < zero, pi - second, second);
  return select(y < zero, -half, half);
}

// The winding number of a triangle with corners a, b, c relative to the point (Van Oosterom and Strackee 1983).
template <class N>
LG_INLINE N winding_of_triangle(Vec<N> a, Vec<N> b, Vec<N> c) {
  const N la = sqrt(dot(a, a)), lb = sqrt(dot(b, b)), lc = sqrt(dot(c, c));
  const N volume = dot(a, cross(b, c));
  const N rest = fma(la * lb, lc, fma(dot(a, b), lc, fma(dot(b, c), la, dot(c, a) * lb)));
  return N(0.159154943f) * angle_of_direction(volume, rest);
}

LG_END
