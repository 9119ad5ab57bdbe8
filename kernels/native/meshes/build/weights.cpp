// Determines whether open parts of a mesh wind against the volume that its solid parts enclose.
#include <algorithm>
#include <cmath>
#include <vector>

#include "meshes/build/partition.h"
#include "meshes/build/point.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

constexpr double kFourPi = 12.566370614359172;
// The number of faces of a solid part per place, the most places of a part, and the most places of all parts.
constexpr int64_t kFacesOfPlace = 3, kPlaces = 8, kMostPlaces = 512;
// The most faces and clusters that all places together visit; each place has an equal share.
constexpr int64_t kMostVisits = 1 << 22;
// The number of faces or clusters that are joined. A cluster counts as one vector for places at least kFar times its
// reach away.
constexpr std::size_t kFan = 8;
constexpr double kFar = 4.0;
// The least area of a face, since faces may have no area after a move.
constexpr double kLeastArea = 1e-200;
constexpr int32_t kNoPart = -1, kManyParts = -2;
// Winding numbers above 1/2 are inside; enclosed places must exceed this by a margin, for places in between.
constexpr double kEnclosed = 0.6;
constexpr int kMostWeight = 3;

struct Box {
  double low[3], high[3];

  bool holds(const Box& other) const {
    bool inside = true;
    for (int k = 0; k < 3; ++k) inside &= low[k] <= other.low[k] && other.high[k] <= high[k];
    return inside;
  }
  // Whether a ball meets the box.
  bool meets(Point middle, double radius) const {
    const double at[3] = {middle.x, middle.y, middle.z};
    double squared = 0.0;
    for (int k = 0; k < 3; ++k) {
      const double beside = std::max({0.0, low[k] - at[k], at[k] - high[k]});
      squared += beside * beside;
    }
    return squared <= radius * radius;
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

// Neighbouring faces as seen from far away.
struct Cluster {
  Point middle{}, area{};
  double size = 0.0, reach = 0.0;  // The sum of the areas, and the distance from `middle` to the farthest point.
  int32_t part = kNoPart;          // The part of all faces, or kManyParts.

  void add(Point at, Point vector, double amount, int32_t of) {
    part = part == kNoPart || part == of ? of : kManyParts;
    middle = middle + amount * at;
    area = area + vector;
    size += amount;
  }
  void cover(Point at, double radius) { reach = std::max(reach, std::sqrt(squared_length(at - middle)) + radius); }
};

// The faces of open parts, and a tree of clusters over them. Faces come in an order in which neighbours are close.
class Sheets {
 public:
  void add(const Corners& face, int32_t part) {
    faces_.push_back(face);
    parts_.push_back(part);
  }
  bool empty() const { return faces_.empty(); }

  void build() {
    std::vector<Cluster> joined = clusters_of(faces_.size());
    for (std::size_t i = 0; i < faces_.size(); ++i) {
      const Corners& face = faces_[i];
      const Point area = 0.5 * cross(face.at[1] - face.at[0], face.at[2] - face.at[0]);
      joined[i / kFan].add(face.middle(), area, std::max(std::sqrt(squared_length(area)), kLeastArea), parts_[i]);
    }
    for (Cluster& cluster : joined) cluster.middle = 1.0 / cluster.size * cluster.middle;
    for (std::size_t i = 0; i < faces_.size(); ++i) {
      for (const Point corner : faces_[i].at) joined[i / kFan].cover(corner, 0.0);
    }
    levels_.push_back(std::move(joined));
    while (levels_.back().size() > 1) levels_.push_back(joined_from(levels_.back()));
  }

  // The winding number at a point of a part whose box is `own`, without parts for which `held` returns true. After
  // `visits` faces and clusters, the rest is approximated as seen from far away.
  template <class Held>
  double winding(Point from, const Box& own, const Held& held, int64_t visits) const {
    return sum_of(levels_.size() - 1, 0, from, own, held, visits);
  }

 private:
  static std::vector<Cluster> clusters_of(std::size_t count) { return std::vector<Cluster>((count + kFan - 1) / kFan); }

  static std::vector<Cluster> joined_from(const std::vector<Cluster>& below) {
    std::vector<Cluster> joined = clusters_of(below.size());
    for (std::size_t i = 0; i < below.size(); ++i) {
      joined[i / kFan].add(below[i].middle, below[i].area, below[i].size, below[i].part);
    }
    for (Cluster& cluster : joined) cluster.middle = 1.0 / cluster.size * cluster.middle;
    for (std::size_t i = 0; i < below.size(); ++i) joined[i / kFan].cover(below[i].middle, below[i].reach);
    return joined;
  }

  template <class Held>
  double sum_of(std::size_t level, std::size_t index, Point from, const Box& own, const Held& held,
                int64_t& visits) const {
    const Cluster& cluster = levels_[level][index];
    const bool is_mixed = cluster.part == kManyParts;
    if (!is_mixed && held(cluster.part)) return 0.0;
    const Point way = cluster.middle - from;
    const double squared = squared_length(way);
    const double reach = cluster.reach * cluster.reach;
    const bool is_last = visits <= 0, is_far = squared > (is_last ? 1.0 : kFar * kFar) * reach;
    // Faces of held parts lie in the box.
    if (is_far && (is_last || !is_mixed || !own.meets(cluster.middle, cluster.reach))) {
      return dot(cluster.area, way) / (kFourPi * squared * std::sqrt(squared));
    }
    if (is_last) return 0.0;
    const std::size_t end = std::min(kFan * (index + 1), level == 0 ? faces_.size() : levels_[level - 1].size());
    visits -= static_cast<int64_t>(kFan);
    double sum = 0.0;
    for (std::size_t i = kFan * index; i < end; ++i) {
      if (level > 0) {
        sum += sum_of(level - 1, i, from, own, held, visits);
      } else if (!held(parts_[i])) {
        sum += winding_of(faces_[i], from);
      }
    }
    return sum;
  }

  std::vector<Corners> faces_;
  std::vector<int32_t> parts_;
  std::vector<std::vector<Cluster>> levels_;
};

class Weigher {
 public:
  Weigher(const Points& points, const Topology& topology) : points_(points), topology_(topology) {}

  int weigh() {
    sort_faces();
    const std::vector<int64_t> places = choose_places();
    if (places.empty() || sheets_.empty()) return 1;
    sheets_.build();
    const auto count = static_cast<int64_t>(places.size());
    std::vector<double> found(places.size());
    const int pieces = parts_for(count * topology_.faces(), 1 << 12);
    for_parts(pieces, [&](int p) {
      for (int64_t i = count * p / pieces; i < count * (p + 1) / pieces; ++i) {
        found[i] = winding_at(places[i], kMostVisits / count);
      }
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
      const Corners corners = corners_of(slot);
      for (const Point p : corners.at) {
        const double values[3] = {p.x, p.y, p.z};
        for (int k = 0; k < 3; ++k) {
          box.low[k] = std::min(box.low[k], values[k]);
          box.high[k] = std::max(box.high[k], values[k]);
        }
      }
      if (topology_.solid[part] != 0) {
        solid_[part].push_back(slot);
      } else {
        sheets_.add(corners, part);
      }
    }
  }

  // Slots of solid parts, evenly spread over the parts and over the faces of each.
  std::vector<int64_t> choose_places() const {
    std::vector<int32_t> parts;
    for (std::size_t i = 0; i < solid_.size(); ++i) {
      if (!solid_[i].empty()) parts.push_back(static_cast<int32_t>(i));
    }
    const auto count = static_cast<int64_t>(parts.size()), chosen = std::min(count, kMostPlaces);
    std::vector<int64_t> places;
    for (int64_t i = 0; i < chosen; ++i) {
      const std::vector<int64_t>& slots = solid_[parts[i * count / chosen]];
      const auto faces = static_cast<int64_t>(slots.size());
      const int64_t most = std::min({kPlaces, kMostPlaces / chosen, faces / kFacesOfPlace});
      const int64_t each = std::max(most, int64_t{1});
      for (int64_t j = 0; j < each; ++j) places.push_back(slots[j * faces / each]);
    }
    return places;
  }

  // The winding number of open parts in the middle of a face, without the parts inside its part, which are its
  // cavities.
  double winding_at(int64_t slot, int64_t visits) const {
    const Point from = corners_of(slot).middle();
    const Box& own = boxes_[topology_.part_of(slot)];
    return sheets_.winding(from, own, [&](int32_t part) { return own.holds(boxes_[part]); }, visits);
  }

  const Points& points_;
  const Topology& topology_;
  std::vector<Box> boxes_;                   // By part.
  std::vector<std::vector<int64_t>> solid_;  // The slots of each solid part.
  Sheets sheets_;                            // The faces of all open parts.
};

}  // namespace

int weigh_solids(const Points& points, const Topology& topology) {
  const auto solids = std::count(topology.solid.begin(), topology.solid.end(), 1);
  if (solids == 0 || solids == topology.part_count) return 1;
  return Weigher(points, topology).weigh();
}

}  // namespace lumigrad::meshes
