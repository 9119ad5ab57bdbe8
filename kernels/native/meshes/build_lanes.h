// The triangles of a leaf side by side, in double: loops over the lanes become SIMD.
#pragma once

#include <cmath>

#include "common/array.h"
#include "meshes/params.h"
#include "meshes/topology.h"

namespace lumigrad::meshes {

using Lanes = double[kWide];

// Corner a, the edges u = b - a, v = c - a, and what follows of them.
struct LeafLanes {
  Lanes a[3], u[3], v[3];
  Lanes cross[3], twice;  // u x v, and its length
  Lanes uu, vv, ww, uv;   // Squared lengths of ab, ca, bc; u . v
};

inline void gather(const double* points, const int32_t* corners, LeafLanes& leaf) {
  for (int lane = 0; lane < kWide; ++lane) {
    const double* a = points + 3ll * corners[3 * lane];
    const double* b = points + 3ll * corners[3 * lane + 1];
    const double* c = points + 3ll * corners[3 * lane + 2];
    for (int k = 0; k < 3; ++k) {
      leaf.a[k][lane] = a[k];
      leaf.u[k][lane] = b[k] - a[k];
      leaf.v[k][lane] = c[k] - a[k];
    }
  }
}

inline void measure(LeafLanes& leaf) {
  for (int l = 0; l < kWide; ++l) {
    const double ux = leaf.u[0][l], uy = leaf.u[1][l], uz = leaf.u[2][l];
    const double vx = leaf.v[0][l], vy = leaf.v[1][l], vz = leaf.v[2][l];
    const double wx = vx - ux, wy = vy - uy, wz = vz - uz;
    const double nx = uy * vz - uz * vy, ny = uz * vx - ux * vz, nz = ux * vy - uy * vx;
    leaf.cross[0][l] = nx;
    leaf.cross[1][l] = ny;
    leaf.cross[2][l] = nz;
    leaf.twice[l] = std::sqrt(nx * nx + ny * ny + nz * nz);
    leaf.uu[l] = ux * ux + uy * uy + uz * uz;
    leaf.vv[l] = vx * vx + vy * vy + vz * vz;
    leaf.ww[l] = wx * wx + wy * wy + wz * wz;
    leaf.uv[l] = ux * vx + uy * vy + uz * vz;
  }
}

}  // namespace lumigrad::meshes
