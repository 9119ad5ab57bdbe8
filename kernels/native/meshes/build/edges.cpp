// Finds the faces that share an edge.
#include <algorithm>
#include <vector>

#include "meshes/build/partition.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

// Edge `half` % 3 (ab, bc, ca) of face `half` / 3, between the vertices low < high.
struct HalfEdge {
  int32_t low, high;
  uint32_t half_and_way;  // 2 * half, plus 1 if the face traverses the edge from low to high.

  int32_t half() const { return static_cast<int32_t>(half_and_way >> 1); }
  int32_t face() const { return half() / 3; }
  bool forward() const { return (half_and_way & 1) != 0; }
};

struct Counts {
  int64_t boundary = 0, nonmanifold = 0, inconsistent = 0, duplicates = 0;
  Twins twins;
};

class Pairing {
 public:
  explicit Pairing(Topology& topology)
      : corners_(topology.corners.data()), numbers_(topology.numbers.data()), neighbours_(topology.neighbours.data()) {}

  HalfEdge half_edge(int64_t half) const {
    const int32_t from = corners_[half], to = corners_[half % 3 == 2 ? half - 2 : half + 1];
    return {std::min(from, to), std::max(from, to), static_cast<uint32_t>(half) << 1 | (from < to)};
  }

  // Joins the faces of one edge; its half-edges are in the order of their faces.
  void join(const HalfEdge* edge, int64_t count, Counts& counts) const {
    if (count == 1) {
      neighbours_[edge[0].half()] = kNoFace;
      counts.boundary += 1;
      return;
    }
    if (count == 2) {
      neighbours_[edge[0].half()] = edge[1].face();
      neighbours_[edge[1].half()] = edge[0].face();
      counts.inconsistent += edge[0].forward() == edge[1].forward();
      if (opposite(edge[0]) == opposite(edge[1])) find_duplicates(edge, count, counts);
    } else {
      for (int64_t i = 0; i < count; ++i) neighbours_[edge[i].half()] = kManyFaces;
      counts.nonmanifold += 1;
      find_duplicates(edge, count, counts);
    }
  }

 private:
  int32_t opposite(const HalfEdge& e) const {
    const int32_t half = e.half();
    return corners_[half % 3 == 0 ? half + 2 : half - 1];
  }

  // Faces with the same corners share all three edges; they are found at the edge opposite the largest vertex.
  void find_duplicates(const HalfEdge* edge, int64_t count, Counts& counts) const {
    struct Corner {
      int32_t third, number, face;
      bool forward;
    };
    std::vector<Corner> found;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t third = opposite(edge[i]), face = edge[i].face();
      if (third > edge[i].high) found.push_back({third, numbers_[face], face, edge[i].forward()});
    }
    std::sort(found.begin(), found.end(), [](const Corner& a, const Corner& b) {
      return a.third != b.third ? a.third < b.third : a.number < b.number;
    });
    bool seen[2] = {false, false};
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool another = i == 0 || found[i].third != found[i - 1].third;
      if (another) seen[0] = seen[1] = false;
      counts.duplicates += !another;
      const bool forward = found[i].forward;
      if (seen[forward]) {
        counts.twins.repeated.push_back(found[i].face);
      } else if (seen[!forward]) {
        counts.twins.opposed.push_back(found[i].face);
      }
      seen[found[i].forward] = true;
    }
  }

  const int32_t *corners_, *numbers_;
  int32_t* neighbours_;
};

void append(const std::vector<int32_t>& some, std::vector<int32_t>& all) {
  all.insert(all.end(), some.begin(), some.end());
}

// Sorts half-edges with the same low vertex by their high vertex, then by face.
void sort_edges(HalfEdge* from, HalfEdge* to) {
  const auto before = [](const HalfEdge& a, const HalfEdge& b) {
    return a.high != b.high ? a.high < b.high : a.half_and_way < b.half_and_way;
  };
  if (to - from > 16) return std::sort(from, to, before);
  for (HalfEdge* next = from + 1; next < to; ++next) {
    const HalfEdge edge = *next;
    HalfEdge* at = next;
    for (; at > from && before(edge, at[-1]); --at) *at = at[-1];
    *at = edge;
  }
}

// Joins the half-edges of one bin: all whose low vertex is among the `vertices` vertices from `first` on.
void join_bin(const Pairing& pairing, const HalfEdge* edges, int64_t count, int32_t first, int32_t vertices,
              Counts& counts) {
  std::vector<int32_t> begin(static_cast<std::size_t>(vertices) + 2, 0);
  Array<HalfEdge> sorted(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) ++begin[edges[i].low - first + 2];
  for (int32_t v = 0; v < vertices; ++v) begin[v + 2] += begin[v + 1];
  for (int64_t i = 0; i < count; ++i) sorted[begin[edges[i].low - first + 1]++] = edges[i];
  for (int32_t v = 0; v < vertices; ++v) {
    HalfEdge* const to = sorted.data() + begin[v + 1];
    HalfEdge* edge = sorted.data() + begin[v];
    sort_edges(edge, to);
    for (HalfEdge* next; edge < to; edge = next) {
      next = edge + 1;
      while (next < to && next->high == edge->high) ++next;
      pairing.join(edge, next - edge, counts);
    }
  }
}

}  // namespace

Twins pair_edges(Topology& topology, Report& report) {
  const int64_t faces = topology.faces();
  const int64_t slots = static_cast<int64_t>(shape_of(faces).leaves) * kWide;
  topology.neighbours = Array<int32_t>(static_cast<std::size_t>(3 * faces), static_cast<std::size_t>(3 * slots));
  const Pairing pairing(topology);
  int shift = 0;
  while (topology.distinct >> shift > 256) ++shift;
  const int bins = static_cast<int>((topology.distinct - 1) >> shift) + 1;
  const auto edges = partition<HalfEdge>(
      3 * faces, bins, [&](int64_t half) { return pairing.half_edge(half); },
      [&](const HalfEdge& e) { return e.low >> shift; });
  std::vector<Counts> counts(bins);
  for_parts(bins, [&](int bin) {
    const int64_t begin = edges.begin[bin];
    join_bin(pairing, edges.entries.data() + begin, edges.begin[bin + 1] - begin, bin << shift, 1 << shift,
             counts[bin]);
  });
  for (int64_t s = faces; s < slots; ++s) {
    for (int k = 0; k < 3; ++k) topology.neighbours[3 * s + k] = topology.neighbours[3 * (faces - 1) + k];
  }
  Counts sum;
  for (const Counts& c : counts) {
    sum.boundary += c.boundary;
    sum.nonmanifold += c.nonmanifold;
    sum.inconsistent += c.inconsistent;
    sum.duplicates += c.duplicates;
    append(c.twins.repeated, sum.twins.repeated);
    append(c.twins.opposed, sum.twins.opposed);
  }
  report.boundary_edges = sum.boundary;
  report.nonmanifold_edges = sum.nonmanifold;
  report.inconsistent_edges = sum.inconsistent;
  report.duplicate_faces = sum.duplicates;
  report.closed = sum.boundary == 0 && sum.nonmanifold == 0;
  report.oriented = report.closed && sum.inconsistent == 0;
  std::sort(sum.twins.repeated.begin(), sum.twins.repeated.end());
  std::sort(sum.twins.opposed.begin(), sum.twins.opposed.end());
  return sum.twins;
}

}  // namespace lumigrad::meshes
