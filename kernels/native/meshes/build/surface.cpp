// Computes the positions of vertices, and which chunk of the leaves sums each vertex normal.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "meshes/build/partition.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

struct Bounds {
  double low[3], high[3];
};

Bounds bounds_of(const double* vertices, const Topology& topology) {
  const int64_t count = topology.distinct;
  const int parts = parts_for(count);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Bounds none = {{kInfinity, kInfinity, kInfinity}, {-kInfinity, -kInfinity, -kInfinity}};
  std::vector<Bounds> found(parts, none);
  for_parts(parts, [&](int p) {
    Bounds b = none;
    for (int64_t v = count * p / parts; v < count * (p + 1) / parts; ++v) {
      if (topology.owners[v] == kUnused) continue;
      const double* at = vertices + 3ll * topology.sources[v];
      for (int k = 0; k < 3; ++k) {
        b.low[k] = std::min(b.low[k], at[k]);
        b.high[k] = std::max(b.high[k], at[k]);
      }
    }
    found[p] = b;
  });
  for (int p = 1; p < parts; ++p) {
    for (int k = 0; k < 3; ++k) {
      found[0].low[k] = std::min(found[0].low[k], found[p].low[k]);
      found[0].high[k] = std::max(found[0].high[k], found[p].high[k]);
    }
  }
  return found[0];
}

}  // namespace

void assign_owners(Topology& topology) {
  topology.owners = Array<uint8_t>(static_cast<std::size_t>(topology.distinct));
  std::fill(topology.owners.begin(), topology.owners.end(), kUnused);
  const Chunks chunks(shape_of(topology.faces()).leaves);
  for_parts(chunks.count, [&](int chunk) {
    const auto mine = static_cast<uint8_t>(chunk);
    const int64_t end = std::min<int64_t>(topology.faces(), static_cast<int64_t>(chunks.begin(chunk + 1)) * kWide);
    for (int64_t i = 3ll * kWide * chunks.begin(chunk); i < 3 * end; ++i) {
      std::atomic_ref<uint8_t> owner(topology.owners[topology.corners[i]]);
      uint8_t now = owner.load(std::memory_order_relaxed);
      if (now == mine || now == kShared) continue;
      if (now == kUnused && owner.compare_exchange_strong(now, mine, std::memory_order_relaxed)) continue;
      owner.store(kShared, std::memory_order_relaxed);
    }
  });
}

Points place(const double* vertices, const Topology& topology, Surface& surface, Report& report) {
  const Bounds bounds = bounds_of(vertices, topology);
  double extent = 0.0;
  for (int k = 0; k < 3; ++k) {
    report.low[k] = bounds.low[k];
    report.high[k] = bounds.high[k];
    surface.centre[k] = 0.5 * bounds.low[k] + 0.5 * bounds.high[k];
    extent = std::max({extent, bounds.high[k] - surface.centre[k], surface.centre[k] - bounds.low[k]});
  }
  surface.extent = std::nextafter(static_cast<float>(extent), std::numeric_limits<float>::infinity());
  const int64_t count = topology.distinct;
  Points points(static_cast<std::size_t>(3 * count));
  surface.positions = Array<float>(static_cast<std::size_t>(3 * count));
  const int parts = parts_for(count);
  for_parts(parts, [&](int p) {
    for (int64_t v = count * p / parts; v < count * (p + 1) / parts; ++v) {
      const double* at = vertices + 3ll * topology.sources[v];
      for (int k = 0; k < 3; ++k) {
        const double x = at[k] - surface.centre[k];
        points[3 * v + k] = x;
        surface.positions[3 * v + k] = static_cast<float>(x);
      }
    }
  });
  return points;
}

}  // namespace lumigrad::meshes
