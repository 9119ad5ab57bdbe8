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
  int64_t degenerate_faces, duplicate_faces;  // Without an area; with the corners of another. Degenerate faces and
                                              // duplicates of the same orientation are not counted below.
  int64_t boundary_edges, nonmanifold_edges;  // With one face; with more than two.
  int64_t inconsistent_edges;                 // Edges with two faces that traverse them in the same direction.
  bool closed, oriented;                      // Every edge has two faces; and they traverse it in opposite directions.
  double low[3], high[3], volume, area;       // The mesh as given, metres; the volume is signed.
  // Connected components; solid ones whose boxes meet those of others; those that `upright` turns; and whether points
  // were found that one of them encloses more than once. See build/solids.cpp.
  int64_t components, overlapping_components, turned_components;
  bool self_intersecting;

  // Whether the closest face tells inside from outside: no component is open, or encloses what another one does.
  bool simple() const { return oriented && overlapping_components == 0 && !self_intersecting; }
};

// Marks in Topology::neighbours.
inline constexpr int32_t kNoFace = -1, kManyFaces = -2;

// Values of the faces that are kept, in the order of the slots of the Tree. The arrays of faces have room for all slots
// of the last leaf; the unused slots repeat the last face, with the number -1.
struct Topology {
  Array<int32_t> welded;          // [vertices given] to distinct vertices
  Array<int32_t> sources;         // [distinct] the first vertex given there
  Array<uint8_t> owners;          // [distinct] see build/surface.cpp
  Array<int32_t> numbers;         // [faces] the caller's numbers
  Array<int32_t> corners;         // [faces, 3] distinct vertices; corner a is opposite the longest edge
  Array<int32_t> neighbours;      // [faces, 3] face across the edges ab, bc, ca; kNoFace, kManyFaces
  std::vector<int32_t> left_out;  // The caller's numbers of degenerate faces.
  Array<int32_t> parts;           // [faces] their connected components; empty if there is one only
  std::vector<uint8_t> solid;     // [part_count] closed and oriented, see build/parts.cpp
  int32_t part_count = 0;
  int64_t distinct = 0;

  int64_t faces() const { return static_cast<int64_t>(numbers.size()); }
  int32_t part_of(int64_t face) const { return part_count == 1 ? 0 : parts[face]; }
  std::size_t bytes() const;
};

// Corners of triangles are rounded to multiples of 2^(e - 23), e being the exponent of the extent: edges are then
// exact, and two triangles that share an edge have the same edge.
inline float rounder_of(float extent) {
  int exponent;
  std::frexp(extent, &exponent);
  return std::ldexp(1.0f, exponent);
}
// A rounder with the coordinate's sign makes the last bit of the sum worth the same for all coordinates.
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

// Beyond this Mesh::growth, `moved` builds the mesh anew.
inline constexpr double kWorstGrowth = 2.0;

// A mesh in host memory: the report, and the hierarchy that the CPU searches. Immutable.
class Mesh : public std::enable_shared_from_this<Mesh> {
 public:
  // Builds from vertices [count, 3] and faces [face_count, 3]; indices are in range, values finite. Throws
  // std::invalid_argument if no face has an area. Meshes that this and `moved` return are their own `upright`.
  static std::shared_ptr<const Mesh> build(const double* vertices, int64_t count, const int32_t* faces,
                                           int64_t face_count);
  // The same faces with other vertices. The boxes are fitted again, and the order of triangles is kept. The mesh is
  // built anew if the boxes are much larger than those of the last build (kWorstGrowth), welded vertices no longer
  // coincide, a degenerate face has an area now, or the edge opposite a face's first corner is less than half its
  // longest edge.
  std::shared_ptr<const Mesh> moved(const double* vertices) const;

  const Report& report() const { return report_; }
  const Topology& topology() const { return *topology_; }
  const Surface& surface() const { return *surface_; }
  // Whether `moved` built it anew.
  bool rebuilt() const { return rebuilt_; }
  // The leaves' boxes relative to the mesh's box (areas), divided by the same of the last build: 1 after a build.
  double growth() const { return growth_; }
  Tree tree() const;
  // The same mesh with Tree::dipoles; itself if it has them.
  std::shared_ptr<const Mesh> with_dipoles() const;
  // The faces of the mesh that `with_upright` makes. 0: it needs none.
  int64_t upright_faces() const;
  // The same mesh with its `upright`; `vertices` are those it was made of, and `before`, which may be null, is the mesh
  // that `moved` made it of.
  std::shared_ptr<const Mesh> with_upright(const double* vertices, const Mesh* before) const;
  // The mesh with the faces of Report::turned_components turned, and those of solid components several times if other
  // components wind against what they enclose; itself if there are none, or if all are to be turned and nothing else is
  // amiss, since then all signs may be turned instead.
  std::shared_ptr<const Mesh> upright() const;
  std::size_t bytes() const;

 private:
  // `originals`: the caller's numbers of the faces, some of which may be the same; null: they are as the caller gave
  // them, and the report and `upright` cover the components.
  static std::shared_ptr<Mesh> assemble(const double* vertices, int64_t count, const int32_t* faces, int64_t face_count,
                                        std::shared_ptr<const Array<int32_t>> originals);
  std::shared_ptr<Mesh> refit(const double* vertices) const;
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
  std::vector<uint8_t> turned_;                      // Flags by part; empty: none is turned.
  int solid_weight_ = 1;                             // See weigh_solids.
  std::shared_ptr<const Mesh> upright_;              // The mesh with these parts turned; null: this one.
  double built_size_ = 0.0, growth_ = 1.0;           // See build/mesh.cpp.
  bool rebuilt_ = false;
};

}  // namespace lumigrad::meshes
