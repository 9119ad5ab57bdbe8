// Fits a hierarchy to vertices in the device's memory, and finds what the host must know of them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda/event.h"
#include "common/cuda/memory.h"
#include "common/cuda/staging.h"
#include "meshes/mesh.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

// Lists of the topology that a refit needs beyond a Tree.
class Links {
 public:
  Links(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream);

  std::size_t bytes() const;

  int64_t faces, distinct;
  DeviceBuffer<int32_t> firsts;    // [vertices given] first one at the position; ~ of it if no face uses it
  DeviceBuffer<int32_t> left_out;  // [faces without an area, 3] vertices given
  DeviceBuffer<int32_t> sources;   // [distinct] as in Topology
  DeviceBuffer<int32_t> begin;     // [distinct + 1] into `incident`
  DeviceBuffer<int32_t> incident;  // [3 faces] corners at a vertex, ascending: 3 slot + corner
  DeviceBuffer<int32_t> places;    // Slots of the faces where rays test for self-intersections; -1 if left out
  DeviceEvent complete;
};

// Results of a refit of a mesh that is one solid part.
struct Found {
  double low[3], high[3];  // low[0] is -infinity if the host must refit the mesh.
  double centre[3];
  float extent, rounder, margin;
  float root_low[3], root_high[3];
  double area, volume, size;  // `size`: of the leaves' boxes, see Leaves; infinite if a face turned.
  int32_t is_enclosed;        // Whether a place next to a face is enclosed more than once.

  // Completes the report of the mesh before; returns false if the host must refit the mesh.
  bool report(Report& report) const;
  // Sets the tree's bounds.
  void place(Tree& tree) const;
};

// Copies results to the host, through pinned memory.
class FoundOnHost {
 public:
  FoundOnHost() = default;
  FoundOnHost(const FoundOnHost&) = delete;
  FoundOnHost& operator=(const FoundOnHost&) = delete;
  ~FoundOnHost();

  // Waits for the stream.
  Found fetch(const Found* found, cudaStream_t stream);

 private:
  Found* place_ = nullptr;
};

// Vertices [count, 3] in the device's memory, whose coordinates must be at most `most`.
struct GivenVertices {
  const double* values;
  int64_t count;
  double most;
};

// The arrays of a Tree that are written.
struct RefitArrays {
  float *triangles, *boxes, *positions, *normals, *vertex_normals;
};

Found refit(const Tree& tree, const Links& links, const GivenVertices& vertices, const RefitArrays& arrays,
            FoundOnHost& host, cudaStream_t stream);

}  // namespace lumigrad::meshes
