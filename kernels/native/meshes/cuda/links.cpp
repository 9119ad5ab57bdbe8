// Lists of the topology that a refit on the device needs, and the report that the host makes of its results.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/cuda/launch.h"
#include "meshes/build/places.h"
#include "meshes/build/stages.h"
#include "meshes/cuda/refit.h"
#include "meshes/cuda/upload.h"

namespace lumigrad::meshes {
namespace {

std::vector<int32_t> firsts_of(const Topology& topology) {
  std::vector<int32_t> firsts(topology.welded.size());
  for (std::size_t v = 0; v < firsts.size(); ++v) {
    const int32_t vertex = topology.welded[v], first = topology.sources[vertex];
    firsts[v] = topology.owners[vertex] == kUnused ? ~first : first;
  }
  return firsts;
}

std::vector<int32_t> left_out_of(const Mesh& mesh) {
  std::vector<int32_t> vertices;
  for (const int32_t face : mesh.topology().left_out) {
    const int32_t* at = mesh.faces().data() + 3ll * face;
    vertices.insert(vertices.end(), at, at + 3);
  }
  return vertices;
}

// The ends of the runs of corners of each vertex, [distinct + 1], and these corners.
struct Corners {
  std::vector<int32_t> begin, incident;
};
Corners corners_of(const Topology& topology) {
  Corners found{std::vector<int32_t>(topology.distinct + 1), std::vector<int32_t>(3 * topology.faces())};
  const int64_t count = 3 * topology.faces();
  for (int64_t i = 0; i < count; ++i) ++found.begin[topology.corners[i] + 1];
  for (int64_t v = 0; v < topology.distinct; ++v) found.begin[v + 1] += found.begin[v];
  std::vector<int32_t> next = found.begin;
  for (int64_t i = 0; i < count; ++i) found.incident[next[topology.corners[i]]++] = static_cast<int32_t>(i);
  return found;
}

// The faces of build/solids.cpp.
std::vector<int32_t> places_in(const Topology& topology, int64_t given) {
  std::vector<int32_t> slots(given, -1);
  for (int64_t s = 0; s < topology.faces(); ++s) slots[topology.numbers[s]] = static_cast<int32_t>(s);
  const int64_t count = place_count(given);
  std::vector<int32_t> places(count);
  for (int64_t i = 0; i < count; ++i) places[i] = slots[i * given / count];
  return places;
}

DeviceBuffer<int32_t> uploaded(const std::vector<int32_t>& values, DeviceStaging& staging, cudaStream_t stream) {
  if (values.empty()) return {};
  return upload(values.data(), values.size(), staging, stream);
}

}  // namespace

Links::Links(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream)
    : faces(mesh.topology().faces()), distinct(mesh.topology().distinct), complete(stream) {
  const Topology& topology = mesh.topology();
  firsts = uploaded(firsts_of(topology), staging, stream);
  left_out = uploaded(left_out_of(mesh), staging, stream);
  sources = upload(topology.sources.data(), static_cast<std::size_t>(distinct), staging, stream);
  const Corners corners = corners_of(topology);
  begin = uploaded(corners.begin, staging, stream);
  incident = uploaded(corners.incident, staging, stream);
  places = uploaded(places_in(topology, mesh.report().faces), staging, stream);
  complete.record(stream);
}

std::size_t Links::bytes() const {
  return firsts.bytes() + left_out.bytes() + sources.bytes() + begin.bytes() + incident.bytes() + places.bytes();
}

bool Found::report(Report& report) const {
  if (!std::isfinite(low[0]) || !(area > 0.0) || is_enclosed != 0) return false;
  double squared = 0.0;
  for (int k = 0; k < 3; ++k) {
    report.low[k] = low[k];
    report.high[k] = high[k];
    squared += (high[k] - low[k]) * (high[k] - low[k]);
  }
  report.area = area;
  report.volume = volume;
  report.turned_components = is_inside_out(volume, std::sqrt(squared), area) ? 1 : 0;
  return true;
}

void Found::place(Tree& tree) const {
  std::copy(centre, centre + 3, tree.centre);
  tree.extent = extent;
  std::copy(root_low, root_low + 3, tree.low);
  std::copy(root_high, root_high + 3, tree.high);
  tree.inverted = volume < 0.0;
}

FoundOnHost::~FoundOnHost() { cudaFreeHost(place_); }

Found FoundOnHost::fetch(const Found* found, cudaStream_t stream) {
  if (place_ == nullptr) check(cudaMallocHost(&place_, sizeof(*place_)), "allocating host memory");
  check(cudaMemcpyAsync(place_, found, sizeof(*place_), cudaMemcpyDeviceToHost, stream), "copying numbers");
  check(cudaStreamSynchronize(stream), "waiting for the device");
  return *place_;
}

}  // namespace lumigrad::meshes
