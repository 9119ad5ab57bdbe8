// Pinhole cameras that approximate the view's camera within a tile or a window of tiles: in a small part of its image
// any lens is nearly a pinhole. The outline of an ellipsoid in a pinhole's image is an ellipse, so the blocks that a
// Gaussian may reach are found as for Gaussians that are evaluated on the film.
#pragma once

#include "gaussians/cpu/rays/field.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)

// A pinhole in memory: the matrix, row by row, from directions to pixels times depth, relative to the centre of the
// part's first pixel; and the largest distance, in pixels, between where it sees a ray of the part and the ray's pixel,
// negative if no pinhole approximates the camera.
namespace pinhole {
enum Field { kMatrix, kMargin = 9 };
}

// Ellipses as which sixteen Gaussians are seen, with 0 in the centre and -1 on the outline.
struct Outlines {
  Ellipse<Pack> ellipse;
  Pack half_width, half_height;
  MaskPack whole;  // Whether the whole Gaussian lies ahead of the pinhole. If not, its ellipse covers the image.
};

// The outlines of sixteen Gaussians, each through the pinhole in its lane.
// With c the centre and the rows of A the half axes in the pinhole's frame, c c^T - A A^T is the dual of the outline.
// The pixel of the centre is subtracted first, so that nothing cancels.
LG_INLINE Outlines outlines_of(const Matrix<Pack>& m, const RayBounds<Pack>& g) {
  const auto across = [&](const Triple<Pack>& row) {
    return Triple<Pack>{dot(row, g.axis[0]), dot(row, g.axis[1]), dot(row, g.axis[2])};
  };
  const Pack zero = Pack(0.0f), one = Pack(1.0f), depth = dot(m.z, g.centre);
  const Triple<Pack> a = across(m.x), b = across(m.y), c = across(m.z);
  const Pack square = depth * depth, ahead = square - dot(c, c);
  const MaskPack clear = ahead > Pack(1e-3f) * square, whole = clear & (depth > zero);
  const Pack per_depth = one / select(whole, depth, one), inverse = one / select(whole, ahead, one);
  const Pack x = dot(m.x, g.centre) * per_depth, y = dot(m.y, g.centre) * per_depth;
  const auto beside = [&](const Triple<Pack>& row, Pack at) {
    return Triple<Pack>{fnma(at, c.x, row.x), fnma(at, c.y, row.y), fnma(at, c.z, row.z)};
  };
  const Triple<Pack> p = beside(a, x), q = beside(b, y), normal = cross(p, q);
  const Pack off_x = -(dot(p, c) * inverse), off_y = -(dot(q, c) * inverse);
  const Pack xx = fma(off_x, off_x, dot(p, p) * inverse), xy = fma(off_x, off_y, dot(p, q) * inverse);
  const Pack yy = max(fma(off_y, off_y, dot(q, q) * inverse), Pack(1e-8f));
  const Triple<Pack> turned = {fma(off_x, q.x, -(off_y * p.x)), fma(off_x, q.y, -(off_y * p.y)),
                               fma(off_x, q.z, -(off_y * p.z))};
  const Pack exact = fma(dot(normal, normal) * inverse, inverse, dot(turned, turned) * inverse);
  const Pack determinant = fma(Pack(1e-12f) * xx, yy, max(exact, Pack(1e-8f) * yy));
  const Pack ux = sqrt(yy / determinant), far = Pack(1e-9f), nothing = Pack(-kNowhere);
  Outlines to;
  to.whole = whole;
  to.half_width = sqrt(xx);
  to.half_height = sqrt(yy);
  to.ellipse.x = zero_unless(whole, x + off_x);
  to.ellipse.y = zero_unless(whole, y + off_y);
  to.ellipse.ux = select(whole, ux, far);
  to.ellipse.uy = zero_unless(whole, -(xy / yy * ux));
  to.ellipse.vy = select(whole, one / to.half_height, far);
  to.ellipse.log2_opacity = select(clear & (depth <= zero), nothing, zero);
  return to;
}

// The bounds of sixteen Gaussians from the fields of their rows (see ray_bounds).
LG_INLINE RayBounds<Pack> ray_bounds_of(const Pack* f) {
  const auto column = [&](int i) { return Triple<Pack>{f[i], f[i + 3], f[i + 6]}; };
  return {{column(0), column(1), column(2)},
          {f[ray_bounds::kCentre], f[ray_bounds::kCentre + 1], f[ray_bounds::kCentre + 2]}};
}
// The matrices of sixteen pinholes from the fields of their rows.
LG_INLINE Matrix<Pack> pinhole_matrix(const Pack* f) {
  return {{f[0], f[1], f[2]}, {f[3], f[4], f[5]}, {f[6], f[7], f[8]}};
}

// Fits the pinholes of tiles and windows to the rays, which must have been made.
void make_pinholes(const RayField& field, int tiles_x, int tiles_y);

LG_END
