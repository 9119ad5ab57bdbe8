// Multipole expansions of the winding numbers of parts of a mesh, for distant points.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/threads.h"
#include "meshes/build/partition.h"
#include "meshes/build/point.h"
#include "meshes/build/stages.h"
#include "meshes/math/winding.h"

namespace lumigrad::meshes {
namespace {

// Homogeneous polynomials in three variables.

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

// Removes the part that is a multiple of r.r; the rest is harmonic.
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

static_assert(kDipoleRows == kDipoleFloats);

constexpr double kFourPi = 12.566370614359172;

// The moments of some triangles, see math/winding.h; the area is 0 if there are none.
struct Part {
  double area = 0.0, radius = 0.0;  // `radius` of a ball around the centre.
  Point centre{};
  Point normal{};
  Square square;
  Cube cube;
};

double length_of(Point p) { return std::sqrt(squared_length(p)); }

class LeafTriangles {
 public:
  LeafTriangles(const float* triangles, int count) : triangles_(triangles), count_(count) {}

  Part part() const {
    Part part;
    Point middle{};
    for (int l = 0; l < count_; ++l) {
      const Point a = at(0, l), u = at(3, l), v = at(6, l), n = 0.5 * cross(u, v);
      const double area = length_of(n);
      part.area += area;
      part.normal = part.normal + n;
      part.centre = part.centre + area * (a + 1.0 / 3.0 * (u + v));
      middle = middle + 1.0 / count_ * a;
    }
    part.centre = part.area > 0.0 ? 1.0 / part.area * part.centre : middle;
    // Rounded coordinates may leave no triangle with an area, but an area of 0 means that there are no triangles.
    part.area = std::max(part.area, 1e-300);
    for (int l = 0; l < count_; ++l) add(l, part);
    return part;
  }

 private:
  Point at(int row, int lane) const {
    const float* p = triangles_ + row * kWide + lane;
    return {p[0], p[kWide], p[2 * kWide]};
  }
  void add(int l, Part& part) const {
    const Point u = at(3, l), v = at(6, l), a = at(0, l) - part.centre, b = a + u, c = a + v, sum = a + b + c;
    const Point n = 0.5 * cross(u, v);
    part.radius = std::max({part.radius, length_of(a), length_of(b), length_of(c)});
    part.square.add(1.0 / 3.0, product(n, sum));
    // The mean of (d.r)^2 over a triangle.
    Square mean;
    for (const Point corner : {a, b, c, sum}) mean.add(1.0 / 12.0, product(corner, corner));
    part.cube.add(1.0, product(n, mean));
  }

  const float* triangles_;
  int count_;
};

Part part_of_parts(const Part* children, int count) {
  Part part;
  for (int i = 0; i < count; ++i) {
    part.area += children[i].area;
    part.normal = part.normal + children[i].normal;
    part.centre = part.centre + children[i].area * children[i].centre;
  }
  part.centre = 1.0 / part.area * part.centre;
  for (int i = 0; i < count; ++i) {
    const Part& child = children[i];
    const Point way = child.centre - part.centre;
    part.radius = std::max(part.radius, length_of(way) + child.radius);
    part.square.add(1.0, child.square);
    part.square.add(1.0, product(child.normal, way));
    part.cube.add(1.0, child.cube);
    part.cube.add(2.0, product(way, child.square));
    part.cube.add(1.0, product(way, product(child.normal, way)));
  }
  return part;
}

void store(const Part& part, float* out) {
  const auto put = [&](int row, double value) { out[row * kWide] = static_cast<float>(value); };
  if (part.area == 0.0) {
    for (int row = 0; row < kDipoleRows; ++row) put(row, 0.0);
    put(kDipoleCentre, kFar);
    return;
  }
  const double reach = kDipoleReachRadii * part.radius;
  put(kDipoleReach, reach * reach);
  const double centre[3] = {part.centre.x, part.centre.y, part.centre.z};
  const double normal[3] = {part.normal.x, part.normal.y, part.normal.z};
  for (int k = 0; k < 3; ++k) {
    put(kDipoleCentre + k, centre[k]);
    put(kDipoleNormal + k, normal[k] / kFourPi);
  }
  const Square square = harmonic(part.square);
  for (int k = 0; k < 6; ++k) put(kDipoleSquare + k, -3.0 / kFourPi * square.c[k]);
  const Cube cube = harmonic(part.cube);
  for (int k = 0; k < 10; ++k) put(kDipoleCube + k, 7.5 / kFourPi * cube.c[k]);
}

// The parts of the children of a level's nodes; `below` holds the parts of the level below.
std::vector<Part> parts_of_level(const Leaves& leaves, int level, int64_t faces, const std::vector<Part>& below) {
  const int64_t children = level == 0 ? leaves.shape.leaves : leaves.shape.nodes_of(level - 1);
  std::vector<Part> found(static_cast<std::size_t>(leaves.shape.nodes_of(level)) * kWide);
  const int parts = parts_for(children, 256);
  for_parts(parts, [&](int p) {
    for (int64_t i = children * p / parts; i < children * (p + 1) / parts; ++i) {
      if (level == 0) {
        const int count = static_cast<int>(std::min<int64_t>(kWide, faces - i * kWide));
        found[i] = LeafTriangles(leaves.triangles.data() + i * kTriangleFloats * kWide, count).part();
      } else {
        int count = kWide;
        while (below[i * kWide + count - 1].area == 0.0) --count;
        found[i] = part_of_parts(below.data() + i * kWide, count);
      }
    }
  });
  return found;
}

}  // namespace

Array<float> fit_dipoles(const Leaves& leaves, int64_t faces) {
  const Levels& shape = leaves.shape;
  constexpr int64_t kStride = int64_t{kDipoleFloats} * kWide;
  Array<float> dipoles(static_cast<std::size_t>(shape.nodes() * kStride));
  std::vector<Part> parts;
  for (int level = 0; level < shape.levels; ++level) {
    parts = parts_of_level(leaves, level, faces, parts);
    float* nodes = dipoles.data() + shape.level_begin[level] * kStride;
    for_parts(shape.nodes_of(level), [&](int node) {
      for (int child = 0; child < kWide; ++child) store(parts[node * kWide + child], nodes + node * kStride + child);
    });
  }
  return dipoles;
}

}  // namespace lumigrad::meshes
