// Finds the connected components of a mesh: its parts.
#include <algorithm>
#include <tuple>
#include <vector>

#include "meshes/build/partition.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

// Disjoint sets of faces; the lowest face of a set is its root.
class Sets {
 public:
  explicit Sets(int64_t faces) : above_(static_cast<std::size_t>(faces)) {}

  // Adds a set of one face.
  void put(int64_t face) { above_[face] = static_cast<int32_t>(face); }
  int32_t root(int32_t face) {
    while (above_[face] != face) face = above_[face] = above_[above_[face]];
    return face;
  }
  void unite(int32_t a, int32_t b) {
    if (above_[a] == above_[b]) return;
    a = root(a);
    b = root(b);
    above_[std::max(a, b)] = std::min(a, b);
  }

 private:
  Array<int32_t> above_;
};

// Each thread unites faces of its own. Pairs across threads are left for the end; they are few, since faces near each
// other have numbers near each other.
void unite_across_edges(const Topology& topology, Sets& sets) {
  struct Pair {
    int32_t one, other;
  };
  const int64_t count = topology.faces();
  const int parts = parts_for(count);
  std::vector<std::vector<Pair>> over(parts);
  for_parts(parts, [&](int p) {
    const int64_t begin = count * p / parts, end = count * (p + 1) / parts;
    for (int64_t f = begin; f < end; ++f) {
      sets.put(f);
      for (int k = 0; k < 3; ++k) {
        const int32_t other = topology.neighbours[3 * f + k];
        if (other >= begin && other < f) sets.unite(other, static_cast<int32_t>(f));
        if (other >= 0 && other < begin) over[p].push_back({other, static_cast<int32_t>(f)});
      }
    }
  });
  for (const auto& pairs : over) {
    for (const Pair& pair : pairs) sets.unite(pair.one, pair.other);
  }
}

bool has_single_edge(const Topology& topology, int64_t face) {
  const int32_t* at = topology.neighbours.data() + 3 * face;
  return at[0] < 0 || at[1] < 0 || at[2] < 0;
}

// Unites faces at edges with more than two faces if they share vertices as given, so that two adjacent boxes remain two
// parts.
void unite_by_vertices(const int32_t* faces, const Topology& topology, Sets& sets) {
  Array<int32_t> user(topology.welded.size());
  std::fill(user.begin(), user.end(), -1);
  for (int64_t f = 0; f < topology.faces(); ++f) {
    if (!has_single_edge(topology, f)) continue;
    for (int k = 0; k < 3; ++k) {
      int32_t& first = user[faces[3ll * topology.numbers[f] + k]];
      if (first < 0) first = static_cast<int32_t>(f);
      sets.unite(first, static_cast<int32_t>(f));
    }
  }
}

void number(Sets& sets, Topology& topology) {
  const int64_t count = topology.faces();
  topology.parts = Array<int32_t>(static_cast<std::size_t>(count));
  topology.part_count = 0;
  // The root of a set comes before its other faces.
  for (int64_t f = 0; f < count; ++f) {
    const int32_t root = sets.root(static_cast<int32_t>(f));
    topology.parts[f] = root == f ? topology.part_count++ : topology.parts[root];
  }
  if (topology.part_count == 1) topology.parts = Array<int32_t>();
}

// An edge that a face of a part traverses, from `low` to `high` if `way` is 1, in the opposite direction if `way` is
// -1.
struct Traversal {
  int32_t part, low, high, way;

  auto edge() const { return std::tie(part, low, high); }
};

Traversal traversal_of(const Topology& topology, int64_t face, int k) {
  const int32_t* c = topology.corners.data() + 3 * face;
  const int32_t from = c[k], to = c[(k + 1) % 3];
  return {topology.part_of(face), std::min(from, to), std::max(from, to), from < to ? 1 : -1};
}

// Whether the face across an edge traverses it in the opposite direction.
bool is_opposed(const Topology& topology, int64_t face, int k) {
  const int32_t other = topology.neighbours[3 * face + k];
  const Traversal mine = traversal_of(topology, face, k);
  for (int j = 0; j < 3 && other >= 0; ++j) {
    const Traversal theirs = traversal_of(topology, other, j);
    if (theirs.edge() == mine.edge()) return theirs.way == -mine.way;
  }
  return false;
}

// Finds the solid parts, whose faces traverse every edge equally often in both directions.
void find_solids(Topology& topology) {
  std::vector<Traversal> unpaired;
  for (int64_t f = 0; f < topology.faces(); ++f) {
    for (int k = 0; k < 3; ++k) {
      if (topology.neighbours[3 * f + k] == kNoFace) topology.solid[topology.part_of(f)] = 0;
    }
  }
  for (int64_t f = 0; f < topology.faces(); ++f) {
    for (int k = 0; k < 3 && topology.solid[topology.part_of(f)] != 0; ++k) {
      if (!is_opposed(topology, f, k)) unpaired.push_back(traversal_of(topology, f, k));
    }
  }
  std::sort(unpaired.begin(), unpaired.end(),
            [](const Traversal& a, const Traversal& b) { return a.edge() < b.edge(); });
  for (auto edge = unpaired.begin(); edge != unpaired.end();) {
    int sum = 0;
    auto next = edge;
    for (; next != unpaired.end() && next->edge() == edge->edge(); ++next) sum += next->way;
    if (sum != 0) topology.solid[edge->part] = 0;
    edge = next;
  }
}

}  // namespace

void find_parts(const int32_t* faces, const Report& report, Topology& topology) {
  Sets sets(topology.faces());
  unite_across_edges(topology, sets);
  if (!report.closed) unite_by_vertices(faces, topology, sets);
  number(sets, topology);
  topology.solid.assign(static_cast<std::size_t>(topology.part_count), 1);
  if (!report.oriented) find_solids(topology);
}

}  // namespace lumigrad::meshes
