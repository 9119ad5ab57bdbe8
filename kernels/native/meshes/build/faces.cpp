// Selects the faces to keep, and the first corner of each.
#include <algorithm>

#include "meshes/build/face.h"
#include "meshes/build/partition.h"
#include "meshes/build/point.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

struct Edges {
  double ab, bc, ca;  // Squared lengths.
};
Edges edges_of(Point a, Point b, Point c) {
  return {squared_length(b - a), squared_length(c - b), squared_length(a - c)};
}

// The corner opposite the longest edge; the first one if several edges are the longest.
int first_corner(const Edges& e) { return e.bc >= e.ab && e.bc >= e.ca ? 0 : e.ca >= e.ab ? 1 : 2; }

}  // namespace

FaceList list_faces(const double* vertices, const int32_t* faces, int64_t count, Topology& topology) {
  FaceList list{Array<int32_t>(static_cast<std::size_t>(3 * count)), Array<Centroid>(static_cast<std::size_t>(count))};
  const int parts = parts_for(count);
  std::vector<std::vector<int32_t>> flat(parts);
  const Point origin = point_at(vertices + 3ll * faces[0]);
  for_parts(parts, [&](int p) {
    for (int64_t f = count * p / parts; f < count * (p + 1) / parts; ++f) {
      const int32_t* v = faces + 3 * f;
      const Point a = point_at(vertices + 3ll * v[0]), b = point_at(vertices + 3ll * v[1]),
                  c = point_at(vertices + 3ll * v[2]);
      const Edges e = edges_of(a, b, c);
      if (!has_area(a, b, c)) flat[p].push_back(static_cast<int32_t>(f));
      const int first = first_corner(e);
      for (int k = 0; k < 3; ++k) list.corners[3 * f + k] = topology.welded[v[(first + k) % 3]];
      const Point sum = (a - origin) + (b - origin) + (c - origin);
      list.centroids[f] = {{static_cast<float>(sum.x), static_cast<float>(sum.y), static_cast<float>(sum.z)},
                           static_cast<int32_t>(f)};
    }
  });
  for (const auto& some : flat) topology.left_out.insert(topology.left_out.end(), some.begin(), some.end());
  if (topology.left_out.empty()) return list;
  Array<Centroid> kept(static_cast<std::size_t>(count) - topology.left_out.size());
  auto next = topology.left_out.begin();
  std::copy_if(list.centroids.begin(), list.centroids.end(), kept.begin(), [&](const Centroid& c) {
    const bool flat_one = next != topology.left_out.end() && *next == c.face;
    next += flat_one;
    return !flat_one;
  });
  list.centroids = std::move(kept);
  return list;
}

void take_faces(const FaceList& list, Topology& topology) {
  const int64_t count = static_cast<int64_t>(list.centroids.size());
  const int64_t slots = static_cast<int64_t>(shape_of(count).leaves) * kWide;
  topology.numbers = Array<int32_t>(static_cast<std::size_t>(count), static_cast<std::size_t>(slots));
  topology.corners = Array<int32_t>(static_cast<std::size_t>(3 * count), static_cast<std::size_t>(3 * slots));
  const int parts = parts_for(slots);
  for_parts(parts, [&](int p) {
    for (int64_t s = slots * p / parts; s < slots * (p + 1) / parts; ++s) {
      const int64_t face = list.centroids[std::min(s, count - 1)].face;
      topology.numbers[s] = s < count ? static_cast<int32_t>(face) : -1;
      for (int k = 0; k < 3; ++k) topology.corners[3 * s + k] = list.corners[3 * face + k];
    }
  });
}

}  // namespace lumigrad::meshes
