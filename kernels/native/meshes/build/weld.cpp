// Merges vertices at equal positions.
#include <bit>
#include <cstring>

#include "meshes/build/partition.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

constexpr int kBinBits = 8;

struct Hashed {
  uint32_t hash;
  int32_t vertex;
};

uint64_t bits_of(double x) {
  uint64_t bits;
  x += 0.0;  // -0 becomes 0.
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

uint32_t hash_of(const double* p) {
  uint64_t h = bits_of(p[0]) * 0x9e3779b97f4a7c15u;
  h = (std::rotl(h, 29) ^ bits_of(p[1])) * 0xbf58476d1ce4e5b9u;
  h = (std::rotl(h, 31) ^ bits_of(p[2])) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>((h ^ (h >> 29)) * 0x9e3779b97f4a7c15u >> 32);
}

bool same(const double* a, const double* b) { return a[0] == b[0] && a[1] == b[1] && a[2] == b[2]; }

// Sets first[v] to the lowest vertex at the position of v, for the entries of one bin, which are sorted by vertex.
void find_first(const double* vertices, const Hashed* entries, int64_t count, int32_t* first) {
  const uint32_t mask = std::bit_ceil(static_cast<uint64_t>(count) * 2 + 2) - 1;
  std::vector<Hashed> table(static_cast<std::size_t>(mask) + 1, Hashed{0, -1});
  for (int64_t i = 0; i < count; ++i) {
    const Hashed entry = entries[i];
    uint32_t at = entry.hash & mask;
    while (table[at].vertex >= 0 &&
           !(table[at].hash == entry.hash && same(vertices + 3ll * table[at].vertex, vertices + 3ll * entry.vertex))) {
      at = (at + 1) & mask;
    }
    if (table[at].vertex < 0) table[at] = entry;
    first[entry.vertex] = table[at].vertex;
  }
}

// Numbers the first vertex at each position; other vertices at the position get the same number.
void number(const int32_t* first, int64_t count, Topology& topology) {
  const int parts = parts_for(count);
  const auto from = [&](int p) { return count * p / parts; };
  std::vector<int64_t> begin(parts + 1, 0);
  for_parts(parts, [&](int p) {
    for (int64_t v = from(p); v < from(p + 1); ++v) begin[p + 1] += first[v] == v;
  });
  for (int p = 0; p < parts; ++p) begin[p + 1] += begin[p];
  topology.distinct = begin[parts];
  topology.sources = Array<int32_t>(static_cast<std::size_t>(topology.distinct));
  for_parts(parts, [&](int p) {
    int32_t next = static_cast<int32_t>(begin[p]);
    for (int64_t v = from(p); v < from(p + 1); ++v) {
      if (first[v] != v) continue;
      topology.sources[next] = static_cast<int32_t>(v);
      topology.welded[v] = next++;
    }
  });
  for_parts(parts, [&](int p) {
    for (int64_t v = from(p); v < from(p + 1); ++v) {
      if (first[v] != v) topology.welded[v] = topology.welded[first[v]];
    }
  });
}

}  // namespace

void weld(const double* vertices, int64_t count, Topology& topology) {
  topology.welded = Array<int32_t>(static_cast<std::size_t>(count));
  const int bins = count < 4096 ? 1 : 1 << kBinBits;
  const auto hashed = partition<Hashed>(
      count, bins, [&](int64_t v) { return Hashed{hash_of(vertices + 3 * v), static_cast<int32_t>(v)}; },
      [&](const Hashed& entry) { return bins == 1 ? 0 : static_cast<int>(entry.hash >> (32 - kBinBits)); });
  Array<int32_t> first(static_cast<std::size_t>(count));
  for_parts(bins, [&](int bin) {
    const int64_t begin = hashed.begin[bin];
    find_first(vertices, hashed.entries.data() + begin, hashed.begin[bin + 1] - begin, first.data());
  });
  number(first.data(), count, topology);
}

}  // namespace lumigrad::meshes
