// A mesh in host memory: its report, topology and surface, and the hierarchy that the CPU searches.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/math/number.h"
#include "common/pool.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

// The report of registration.
struct Report {
  int64_t vertices, faces;                    // Numbers as given.
  int64_t welded_vertices;                    // Distinct positions.
  int64_t degenerate_faces, duplicate_faces;  // Without an area; with the corners of another face. Degenerate faces and
                                              // duplicates of the same orientation are not counted below.
  int64_t boundary_edges, nonmanifold_edges;  // With one face; with more than two.
  int64_t inconsistent_edges;                 // Edges with two faces that traverse them in the same direction.
  bool closed, oriented;                      // Every edge has two faces; they traverse it in opposite directions.
  double low[3], high[3], volume, area;       // The mesh as given, metres; the volume is signed.
  // The numbers of connected components, of solid components whose boxes meet those of others, and of components that
  // `upright` turns; and whether points were found that a component encloses more than once. See build/solids.cpp.
  int64_t components, overlapping_components, turned_components;
  bool self_intersecting;

  // Whether the closest face tells inside from outside: no component is open, and none encloses what another encloses.
  bool simple() const { return oriented && overlapping_components == 0 && !self_intersecting; }
};

// Marks in Topology::neighbours.
inline constexpr int32_t kNoFace = -1, kManyFaces = -2;

// Values of the kept faces, in the order of the slots of the Tree. The arrays of faces have room for all slots of the
// last leaf; unused slots repeat the last face, with the number -1.
struct Topology {
  Array<int32_t> welded;          // [vertices given] to distinct vertices
  Array<int32_t> sources;         // [distinct] the first given vertex at the position
  Array<uint8_t> owners;          // [distinct] see build/surface.cpp
  Array<int32_t> numbers;         // [faces] the caller's numbers
  Array<int32_t> corners;         // [faces, 3] distinct vertices; corner a is opposite the longest edge
  Array<int32_t> neighbours;      // [faces, 3] face across the edges ab, bc, ca; kNoFace, kManyFaces
  std::vector<int32_t> left_out;  // The caller's numbers of degenerate faces.
  Array<int32_t> parts;           // [faces] their connected components; empty if there is only one
  std::vector<uint8_t> solid;     // [part_count] closed and oriented, see build/parts.cpp
  int32_t part_count = 0;
  int64_t distinct = 0;

  int64_t faces() const { return static_cast<int64_t>(numbers.size()); }
  int32_t part_of(int64_t face) const { return part_count == 1 ? 0 : parts[face]; }
  std::size_t bytes() const;
};

// Corners of triangles are rounded to multiples of 2^(e - 23), with e the exponent of the extent, so that edges are
// exact, and two triangles that share an edge have the same edge.
LG_INLINE float rounder_of(float extent) {
  int exponent;
  std::frexp(extent, &exponent);
  return std::ldexp(1.0f, exponent);
}
// The rounder has the coordinate's sign, so that the last bit of the sum has the same value for all coordinates.
LG_INLINE float on_grid(float coordinate, float rounder) {
  const float r = coordinate < 0.0f ? -rounder : rounder;
  return (coordinate + r) - r;
}

// The geometry of a mesh, for the faces of its Topology.
struct Surface {
  double centre[3];
  float extent;
  Array<float> positions;       // [distinct, 3] relative to `centre`
  Array<float> normals;         // [faces, 3] with room as in Topology, see Tree::normals
  Array<float> vertex_normals;  // [distinct, 3]

  std::size_t bytes() const { return positions.bytes() + normals.bytes() + vertex_normals.bytes(); }
};

struct Leaves;

// Beyond this Mesh::growth, `moved` rebuilds the mesh.
inline constexpr double kWorstGrowth = 2.0;

// A mesh in host memory: the report, and the hierarchy that the CPU searches. Immutable.
class Mesh : public std::enable_shared_from_this<Mesh> {
 public:
  // Builds from vertices [count, 3] and faces [face_count, 3]; indices must be in range, values finite. Throws
  // std::invalid_argument if no face has an area. Meshes returned by this and `moved` are their own `upright`.
  static std::shared_ptr<const Mesh> build(const double* vertices, int64_t count, const int32_t* faces,
                                           int64_t face_count);
  // Returns a mesh with the same faces and other vertices. Keeps the order of triangles and refits the boxes. Rebuilds
  // the mesh if the boxes are much larger than at the last build (kWorstGrowth), welded vertices no longer coincide, a
  // degenerate face now has an area, or the edge opposite a face's first corner is less than half the face's longest
  // edge.
  std::shared_ptr<const Mesh> moved(const double* vertices) const;
  // The same for vertices for which a device has decided that the mesh need not be rebuilt.
  std::shared_ptr<const Mesh> refitted(const double* vertices) const;

  const Report& report() const { return report_; }
  const Array<int32_t>& faces() const { return *faces_; }  // [faces given, 3]
  const Topology& topology() const { return *topology_; }
  const Surface& surface() const { return *surface_; }
  // Whether `moved` rebuilt the mesh.
  bool rebuilt() const { return rebuilt_; }
  // The area of the leaves' boxes relative to the mesh's box, divided by its value at the last build: 1 after a build.
  double growth() const { return growth_; }
  Tree tree() const;
  // Whether a device can refit the hierarchy: the mesh is one solid part, found to enclose points once, so that the
  // sign "auto" needs no other faces and no dipoles. `moved` keeps the topology unless it rebuilds the mesh.
  bool is_one_solid() const;
  std::shared_ptr<const Topology> shared_topology() const { return topology_; }
  // The `growth` of a mesh with these faces, whose leaves' boxes have this total area; `low`, `high`: the mesh's box.
  double growth_of(double size, const float* low, const float* high) const;
  // Returns the mesh with Tree::dipoles, or itself if it has them.
  std::shared_ptr<const Mesh> with_dipoles() const;
  // The number of faces of the mesh that `with_upright` makes; 0 if none is needed.
  int64_t upright_faces() const;
  // Returns the mesh with its `upright`. `vertices` are the mesh's; `before`, which may be null, is the mesh from which
  // `moved` made it.
  std::shared_ptr<const Mesh> with_upright(const double* vertices, const Mesh* before) const;
  // The mesh with the faces of Report::turned_components turned, and the faces of solid components repeated if other
  // components wind against what they enclose. The mesh itself if neither is needed, or if only all components must be
  // turned, since then all signs can be turned instead.
  std::shared_ptr<const Mesh> upright() const;
  std::size_t bytes() const;

 private:
  // `originals`: the caller's numbers of the faces, possibly with repetitions; null if the faces are the caller's, in
  // which case the report and `upright` cover the components.
  static std::shared_ptr<Mesh> assemble(const double* vertices, int64_t count, const int32_t* faces, int64_t face_count,
                                        std::shared_ptr<const Array<int32_t>> originals);
  std::shared_ptr<Mesh> refit(const double* vertices) const;
  std::shared_ptr<Mesh> fitted(const double* vertices) const;
  void fit(const double* vertices);
  int weight_of(int32_t part) const { return topology_->solid[part] != 0 ? solid_weight_ : 1; }
  std::shared_ptr<const Mesh> make_upright(const double* vertices) const;

  Report report_{};
  std::shared_ptr<const Array<int32_t>> faces_;  // Faces as given to `assemble`.
  std::shared_ptr<const Topology> topology_;
  std::shared_ptr<const Surface> surface_;
  std::shared_ptr<const Leaves> leaves_;
  std::shared_ptr<const Array<float>> dipoles_;
  std::shared_ptr<const Array<int32_t>> originals_;  // See `assemble`.
  std::vector<uint8_t> turned_;                      // Flags by part; empty if none is turned.
  int solid_weight_ = 1;                             // See weigh_solids.
  std::shared_ptr<const Mesh> upright_;              // The mesh with these parts turned; null if it is this mesh.
  double built_size_ = 0.0, growth_ = 1.0;           // See build/mesh.cpp.
  bool rebuilt_ = false;
};

}  // namespace lumigrad::meshes
