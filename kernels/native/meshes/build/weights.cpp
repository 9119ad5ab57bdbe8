// Finds out whether open parts of a mesh wind against what its solid parts enclose.
#include <algorithm>
#include <cmath>
#include <vector>

#include "meshes/build/partition.h"
#include "meshes/build/point.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

constexpr double kFourPi = 12.566370614359172;
// The most angles that are computed, the places of a solid part, and the most places.
constexpr int64_t kMostAngles = 1 << 22, kPlaces = 8, kMostPlaces = 4096;
// Winding numbers above 1/2 are inside; what is enclosed exceeds it by a margin for places between those looked at.
constexpr double kEnclosed = 0.6;
constexpr int kMostWeight = 3;

struct Box {
  double low[3], high[3];

  bool holds(const Box& other) const {
    bool inside = true;
    for (int k = 0; k < 3; ++k) inside &= low[k] <= other.low[k] && other.high[k] <= high[k];
    return inside;
  }
};

// The corners of a face.
struct Corners {
  Point at[3];

  Point middle() const { return 1.0 / 3.0 * (at[0] + at[1] + at[2]); }
};

// The share of the sphere around a point that a face covers, positive if its back is seen (Van Oosterom and Strackee).
double winding_of(const Corners& face, Point from) {
  const Point a = face.at[0] - from, b = face.at[1] - from, c = face.at[2] - from;
  const double la = std::sqrt(squared_length(a)), lb = std::sqrt(squared_length(b)), lc = std::sqrt(squared_length(c));
  const double rest = la * lb * lc + dot(a, b) * lc + dot(b, c) * la + dot(c, a) * lb;
  return 2.0 / kFourPi * std::atan2(dot(a, cross(b, c)), rest);
}

class Weigher {
 public:
  Weigher(const Points& points, const Topology& topology) : points_(points), topology_(topology) {}

  int weigh() {
    sort_faces();
    if (open_.empty() || open_.size() == static_cast<std::size_t>(topology_.faces())) return 1;
    const std::vector<int64_t> places = choose_places();
    std::vector<double> found(places.size());
    const int pieces = parts_for(static_cast<int64_t>(places.size() * open_.size()), 1 << 12);
    for_parts(pieces, [&](int p) {
      const auto count = static_cast<int64_t>(places.size());
      for (int64_t i = count * p / pieces; i < count * (p + 1) / pieces; ++i) found[i] = winding_at(places[i]);
    });
    const double least = std::min(0.0, *std::min_element(found.begin(), found.end()));
    return std::min(kMostWeight, static_cast<int>(std::floor(kEnclosed - least)) + 1);
  }

 private:
  Corners corners_of(int64_t slot) const {
    const int32_t* c = topology_.corners.data() + 3 * slot;
    return {point_at(points_.data() + 3ll * c[0]), point_at(points_.data() + 3ll * c[1]),
            point_at(points_.data() + 3ll * c[2])};
  }

  // Lists the faces of open parts, those of each solid part, and the boxes of all parts.
  void sort_faces() {
    boxes_.assign(static_cast<std::size_t>(topology_.part_count), {{1e300, 1e300, 1e300}, {-1e300, -1e300, -1e300}});
    solid_.resize(boxes_.size());
    for (int64_t slot = 0; slot < topology_.faces(); ++slot) {
      const int32_t part = topology_.part_of(slot);
      Box& box = boxes_[part];
      for (const Point p : corners_of(slot).at) {
        const double values[3] = {p.x, p.y, p.z};
        for (int k = 0; k < 3; ++k) {
          box.low[k] = std::min(box.low[k], values[k]);
          box.high[k] = std::max(box.high[k], values[k]);
        }
      }
      (topology_.solid[part] != 0 ? solid_[part] : open_).push_back(slot);
    }
  }

  // Slots of solid parts, evenly spread over the parts and over the faces of each.
  std::vector<int64_t> choose_places() const {
    std::vector<int32_t> parts;
    for (std::size_t i = 0; i < solid_.size(); ++i) {
      if (!solid_[i].empty()) parts.push_back(static_cast<int32_t>(i));
    }
    const auto count = static_cast<int64_t>(parts.size());
    const int64_t most = std::clamp(kMostAngles / static_cast<int64_t>(open_.size()), kPlaces, kMostPlaces);
    const int64_t chosen = std::min(count, most), each = std::clamp(most / chosen, int64_t{1}, kPlaces);
    std::vector<int64_t> places;
    for (int64_t i = 0; i < chosen; ++i) {
      const std::vector<int64_t>& slots = solid_[parts[i * count / chosen]];
      for (int64_t j = 0; j < each; ++j) places.push_back(slots[j * static_cast<int64_t>(slots.size()) / each]);
    }
    return places;
  }

  // The winding number of open parts in the middle of a face; not of those inside its part, whose cavities they are.
  double winding_at(int64_t slot) const {
    const Point from = corners_of(slot).middle();
    const Box& own = boxes_[topology_.part_of(slot)];
    double sum = 0.0;
    for (const int64_t open : open_) {
      if (!own.holds(boxes_[topology_.part_of(open)])) sum += winding_of(corners_of(open), from);
    }
    return sum;
  }

  const Points& points_;
  const Topology& topology_;
  std::vector<Box> boxes_;                   // By part.
  std::vector<std::vector<int64_t>> solid_;  // The slots of each solid part.
  std::vector<int64_t> open_;                // The slots of all other parts.
};

}  // namespace

int weigh_solids(const Points& points, const Topology& topology) {
  const auto solids = std::count(topology.solid.begin(), topology.solid.end(), 1);
  if (solids == 0 || solids == topology.part_count) return 1;
  return Weigher(points, topology).weigh();
}

}  // namespace lumigrad::meshes
