// Determines whether the parts of a mesh enclose points twice, and which parts are inside out.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <compare>
#include <iterator>
#include <vector>

#include "meshes/build/crossings.h"
#include "meshes/build/partition.h"
#include "meshes/build/places.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

// Parts closer than this fraction of the extent may be equally far from a point in one of them, up to rounding; the
// closest face then does not tell which part the point is in.
constexpr double kTouch = 1e-5;
// The most parts for which rays decide whether they are cavities, and the most starts of rays in total. A part has as
// many starts as places, up to kManyStarts if there are few parts, and up to kStarts if there are many.
constexpr int64_t kMostParts = 1 << 16, kMostStarts = 1 << 16, kManyStarts = 128, kStarts = 8;

struct Part {
  PartBox box;
  double volume = 0.0, area = 0.0;
  Point origin;  // A point of the part.
  int64_t faces = 0;

  double size() const {
    double sum = 0.0;
    for (int k = 0; k < 3; ++k) sum += (box.high[k] - box.low[k]) * (box.high[k] - box.low[k]);
    return std::sqrt(sum);
  }
  bool negative() const { return is_inside_out(volume, size(), area); }
};

class Inspector {
 public:
  Inspector(const Points& points, const Topology& topology, const Leaves& leaves, double extent)
      : points_(points),
        topology_(topology),
        leaves_(leaves),
        extent_(extent),
        caster_(leaves, topology.faces(), extent) {}

  // Returns for each part whether it must be turned; empty if none.
  std::vector<uint8_t> inspect(Report& report) {
    measure(report);
    list_slots(report.faces);
    report.components = topology_.part_count;
    const std::vector<uint8_t> meeting = meeting_parts();
    report.overlapping_components = std::count(meeting.begin(), meeting.end(), 1);
    std::vector<uint8_t> turned = inside_out(meeting);
    report.turned_components = std::count(turned.begin(), turned.end(), 1);
    report.self_intersecting = report.oriented && is_self_intersecting();
    return turned;
  }

 private:
  void measure(const Report& report) {
    parts_.resize(static_cast<std::size_t>(topology_.part_count));
    if (parts_.size() == 1) {
      parts_[0].volume = report.volume;
      parts_[0].area = report.area;
      for (int k = 0; k < 3; ++k) parts_[0].box.low[k] = report.low[k], parts_[0].box.high[k] = report.high[k];
      return;
    }
    for (int64_t slot = 0; slot < topology_.faces(); ++slot) add(slot, parts_[topology_.part_of(slot)]);
  }

  void add(int64_t slot, Part& part) const {
    Point at[3];
    for (int k = 0; k < 3; ++k) at[k] = point_at(points_.data() + 3ll * topology_.corners[3 * slot + k]);
    if (part.faces++ == 0) {
      part.origin = at[0];
      part.box = {{at[0].x, at[0].y, at[0].z}, {at[0].x, at[0].y, at[0].z}};
    }
    for (const Point p : at) {
      const double values[3] = {p.x, p.y, p.z};
      for (int k = 0; k < 3; ++k) {
        part.box.low[k] = std::min(part.box.low[k], values[k]);
        part.box.high[k] = std::max(part.box.high[k], values[k]);
      }
    }
    const Point normal = cross(at[1] - at[0], at[2] - at[0]);
    part.volume += dot(at[0] - part.origin, normal) / 6.0;
    part.area += 0.5 * std::sqrt(squared_length(normal));
  }

  // Places are chosen in the caller's order of faces, which does not depend on how the hierarchy was built.
  void list_slots(int64_t given) {
    slots_ = Array<int32_t>(static_cast<std::size_t>(given));
    const int64_t kept = topology_.faces();
    if (kept < given) std::fill(slots_.begin(), slots_.end(), -1);
    const int parts = parts_for(kept, 1 << 16);
    for_parts(parts, [&](int p) {
      for (int64_t s = kept * p / parts; s < kept * (p + 1) / parts; ++s) {
        slots_[topology_.numbers[s]] = static_cast<int32_t>(s);
      }
    });
  }

  std::vector<uint8_t> meeting_parts() const {
    std::vector<uint8_t> meeting(parts_.size(), 0);
    if (parts_.size() == 1) return meeting;
    std::vector<PartBox> boxes;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (topology_.solid[i] != 0) boxes.push_back(parts_[i].box);
    }
    const std::vector<uint8_t> found = find_meeting(boxes, kTouch * extent_);
    auto next = found.begin();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (topology_.solid[i] != 0) meeting[i] = *next++;
    }
    return meeting;
  }

  // Faces look away from the enclosed volume, or, for a cavity, into the cavity. A part is a cavity if it winds against
  // the parts all around it, which may be inside out themselves.
  std::vector<uint8_t> inside_out(const std::vector<uint8_t>& meeting) {
    std::vector<uint8_t> turned(parts_.size(), 0);
    bool any = false, open = false;
    int64_t asked = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const bool solid = topology_.solid[i] != 0;
      any |= turned[i] = solid && parts_[i].negative();
      open |= !solid;
      asked += meeting[i];
    }
    if (!any) return {};
    const bool all = open && parts_.size() > 1;
    if (all) asked = static_cast<int64_t>(std::count(topology_.solid.begin(), topology_.solid.end(), 1));
    if (asked > kMostParts) return turned;
    const int64_t starts = starts_of(asked);
    sort_by_parts();
    const auto count = static_cast<int64_t>(parts_.size());
    const int pieces = parts_for(count, 4);
    for_parts(pieces, [&](int p) {
      for (int64_t i = count * p / pieces; i < count * (p + 1) / pieces; ++i) {
        const bool ask = meeting[i] != 0 || (all && topology_.solid[i] != 0);
        if (ask && is_cavity(static_cast<int32_t>(i), starts)) turned[i] = !turned[i];
      }
    });
    return turned;
  }

  // Sorts the slots by part, and within a part in the caller's order.
  void sort_by_parts() {
    begin_.assign(parts_.size() + 1, 0);
    for (int64_t slot = 0; slot < topology_.faces(); ++slot) ++begin_[topology_.part_of(slot) + 1];
    for (std::size_t i = 0; i < parts_.size(); ++i) begin_[i + 1] += begin_[i];
    by_part_.resize(static_cast<std::size_t>(topology_.faces()));
    std::vector<int64_t> next = begin_;
    for (const int32_t slot : slots_) {
      if (slot >= 0) by_part_[next[topology_.part_of(slot)]++] = slot;
    }
  }

  // The number of starts per part if there are this many parts.
  static int64_t starts_of(int64_t parts) {
    const int64_t each = kMostStarts / std::max<int64_t>(parts, 1);
    return std::clamp<int64_t>(each / 4, std::clamp<int64_t>(each, 1, kStarts), kManyStarts);
  }

  bool is_cavity(int32_t part, int64_t most) const {
    const int64_t faces = begin_[part + 1] - begin_[part], starts = std::min(most, kPlacesOnFace * faces);
    std::vector<Around> around;
    for (int64_t i = 0; i < starts && (i == 0 || !around.empty()); ++i) {
      const int32_t slot = by_part_[begin_[part] + i * faces / starts];
      const std::vector<Around> here = parts_around(part, place_of(slot, i));
      std::vector<Around> same;
      std::set_intersection(here.begin(), here.end(), around.begin(), around.end(), std::back_inserter(same));
      around = i == 0 ? here : same;
    }
    int winding = 0;
    for (const Around& other : around) winding += other.winding;
    return parts_[part].negative() ? winding > 0 : winding < 0;
  }

  // The number of times that a part winds around a point.
  struct Around {
    int32_t part;
    int winding;

    auto operator<=>(const Around&) const = default;
  };

  // An open part that looks inward is a room, and objects in a room are not cavities.
  bool encloses(const Around& around) const {
    return topology_.solid[around.part] != 0 ? around.winding != 0 : around.winding > 0;
  }

  // The larger parts around a point, in ascending order. Three rays, since one may run along an edge.
  std::vector<Around> parts_around(int32_t part, Point at) const {
    std::vector<Around> found[3], all;
    const double size = parts_[part].size();
    for (int ray = 0; ray < 3; ++ray) {
      caster_.cast(at, direction_of(ray), [&](int64_t slot, int way) {
        const int32_t other = topology_.part_of(slot);
        if (other != part && parts_[other].size() > size) found[ray].push_back({other, way});
      });
      std::sort(found[ray].begin(), found[ray].end());
      std::vector<Around> sums;
      for (const Around& hit : found[ray]) {
        if (sums.empty() || sums.back().part != hit.part) sums.push_back({hit.part, 0});
        sums.back().winding += hit.winding;
      }
      all.insert(all.end(), sums.begin(), sums.end());
    }
    // Two of the three rays must agree.
    std::sort(all.begin(), all.end());
    std::vector<Around> agreed;
    for (std::size_t i = 1; i < all.size(); ++i) {
      const bool again = !agreed.empty() && agreed.back() == all[i];
      if (all[i] == all[i - 1] && encloses(all[i]) && !again) agreed.push_back(all[i]);
    }
    return agreed;
  }

  // Row 0: corner a of a face; row 3: its edge ab; row 6: ac.
  Point of_face(int64_t slot, int row) const {
    const float* t = leaves_.triangles.data() + slot / kWide * (kTriangleFloats * kWide) + slot % kWide;
    return {t[row * kWide], t[(row + 1) * kWide], t[(row + 2) * kWide]};
  }

  Point place_of(int64_t slot, int64_t which) const {
    return place_on(of_face(slot, 0), of_face(slot, 3), of_face(slot, 6), which);
  }

  bool is_self_intersecting() const {
    const auto given = static_cast<int64_t>(slots_.size());
    const int64_t places = place_count(given);
    std::atomic<bool> found{false};
    const int pieces = parts_for(places, 32);
    for_parts(pieces, [&](int p) {
      for (int64_t i = places * p / pieces; i < places * (p + 1) / pieces && !found; ++i) {
        const int32_t slot = slots_[i * given / places];
        if (slot >= 0 && is_enclosed(slot, i)) found = true;
      }
    });
    return found;
  }

  // Whether a place in front of a face is enclosed by the face's part. Rays along an edge of another face can be wrong,
  // so two rays must agree.
  bool is_enclosed(int32_t slot, int64_t which) const {
    const int32_t part = topology_.part_of(slot);
    const Point normal = cross(of_face(slot, 3), of_face(slot, 6)), from = place_of(slot, which);
    const double length = std::sqrt(squared_length(normal));
    if (length == 0.0) return false;
    const Point out = 1.0 / length * normal;
    for (int ray = 0; ray < 2; ++ray) {
      int winding = parts_[part].negative() ? 1 : 0;
      caster_.cast(from, out + 0.5 * direction_of(which + ray), [&](int64_t other, int way) {
        if (topology_.part_of(other) == part) winding += way;
      });
      if (winding == 0) return false;
    }
    return true;
  }

  const Points& points_;
  const Topology& topology_;
  const Leaves& leaves_;
  const double extent_;
  const RayCaster caster_;
  std::vector<Part> parts_;
  Array<int32_t> slots_;  // Slots by the caller's number of the face; -1 if left out.
  std::vector<int64_t> begin_;
  std::vector<int32_t> by_part_;
};

}  // namespace

std::vector<uint8_t> inspect_parts(const Points& points, const Topology& topology, const Leaves& leaves, double extent,
                                   Report& report) {
  return Inspector(points, topology, leaves, extent).inspect(report);
}

}  // namespace lumigrad::meshes
