// Finds the back faces of two-sided bodies.
#include <algorithm>
#include <vector>

#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

// Whether the face across an edge traverses it in the opposite direction.
bool is_joined(const Topology& topology, int64_t face, int k) {
  const int32_t other = topology.neighbours[3 * face + k];
  if (other < 0) return false;
  const int32_t* mine = topology.corners.data() + 3 * face;
  const int32_t* theirs = topology.corners.data() + 3ll * other;
  bool found = false;
  for (int j = 0; j < 3; ++j) found |= theirs[j] == mine[(k + 1) % 3] && theirs[(j + 1) % 3] == mine[k];
  return found;
}

}  // namespace

Sides::Sides(const Topology& topology, const std::vector<int32_t>& opposed)
    : opposed_(opposed), above_(static_cast<std::size_t>(topology.distinct)) {
  for (std::size_t v = 0; v < above_.size(); ++v) above_[v] = static_cast<int32_t>(v);
  const int32_t* corners = topology.corners.data();
  for (int64_t f = 0; f < topology.faces(); ++f) {
    for (int k = 1; k < 3; ++k) {
      const int32_t a = group_of(corners[3 * f]), b = group_of(corners[3 * f + k]);
      above_[std::max(a, b)] = std::min(a, b);
    }
  }
  std::vector<int64_t> single(above_.size(), 0);
  for (int64_t f = 0; f < topology.faces(); ++f) ++single[group_of(corners[3 * f])];
  for (const int32_t face : opposed_) {
    groups_.push_back(group_of(corners[3ll * face]));
    single[groups_.back()] -= 2;
  }
  is_body_.assign(above_.size(), 0);
  for (const int32_t group : groups_) is_body_[group] = single[group] == 0 ? 1 : 0;
}

int32_t Sides::group_of(int32_t vertex) const {
  while (above_[vertex] != vertex) vertex = above_[vertex] = above_[above_[vertex]];
  return vertex;
}

std::vector<int32_t> Sides::backs() const {
  std::vector<int32_t> found;
  for (std::size_t i = 0; i < opposed_.size(); ++i) {
    if (is_body_[groups_[i]] != 0) found.push_back(opposed_[i]);
  }
  return found;
}

bool Sides::find_open(const Topology& topology) {
  bool found = false;
  for (int64_t f = 0; f < topology.faces(); ++f) {
    uint8_t& is_body = is_body_[group_of(topology.corners[3 * f])];
    for (int k = 0; k < 3 && is_body != 0; ++k) {
      if (!is_joined(topology, f, k)) is_body = 0, found = true;
    }
  }
  return found;
}

}  // namespace lumigrad::meshes
