// The stages of building a mesh, in the order in which they run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/pool.h"
#include "meshes/mesh.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

// Merges vertices at the same position (-0 is 0): fills `welded`, `sources` and `distinct`. Distinct vertices are in
// the order of their sources.
void weld(const double* vertices, int64_t count, Topology& topology);

// The key by which triangles are ordered.
struct Centroid {
  float at[3];  // Three times the centroid, relative to a common point.
  int32_t face;
};
struct FaceList {
  Array<int32_t> corners;     // [faces given, 3] distinct vertices; corner a is opposite the longest edge
  Array<Centroid> centroids;  // Centroids of the faces with an area, in the order of the faces.
};
// Lists the faces with an area; fills `left_out`.
FaceList list_faces(const double* vertices, const int32_t* faces, int64_t count, Topology& topology);

// The levels of a Tree.
struct Levels {
  int32_t leaves, levels;
  int32_t level_begin[kMaxLevels + 1];

  int32_t nodes() const { return level_begin[levels]; }
  int32_t nodes_of(int level) const { return level_begin[level + 1] - level_begin[level]; }
};
// The levels of a Tree of this many triangles.
Levels shape_of(int64_t triangles);

// Puts triangles into the order of the slots: repeatedly halves the triangles of a node along the widest axis of their
// centroids.
void order_triangles(Centroid* centroids, int64_t count);

// Fills `numbers` and `corners` from an ordered list.
void take_faces(const FaceList& list, Topology& topology);

// Faces with the corners of an earlier face, of the same or the opposite orientation: ascending indices into a
// topology.
struct Twins {
  std::vector<int32_t> repeated, opposed;
};
// Fills `neighbours`, and the counts of edges and of duplicate faces in the report. If faces are repeated, `neighbours`
// is not valid.
Twins pair_edges(Topology& topology, Report& report);

// The two-sided bodies of a mesh: groups of faces that share vertices, in which each face has a counterpart that looks
// the other way.
class Sides {
 public:
  // `opposed` as in Twins.
  Sides(const Topology& topology, const std::vector<int32_t>& opposed);
  // The back faces of these groups, each of which comes after its counterpart: ascending indices into the topology.
  std::vector<int32_t> backs() const;
  // Excludes groups that are not closed or not oriented without their back faces, as they are in `topology`, since
  // these are sheets, not bodies; returns whether there was any.
  bool find_open(const Topology& topology);

 private:
  int32_t group_of(int32_t vertex) const;

  std::vector<int32_t> opposed_, groups_;  // Faces, and their groups.
  mutable std::vector<int32_t> above_;     // By vertex; the lowest vertex of a group is the root.
  std::vector<uint8_t> is_body_;           // By root.
};

// Fills `parts`, `part_count` and `solid`, after `neighbours`; `faces` are as given.
void find_parts(const int32_t* faces, const Report& report, Topology& topology);

// Fills `owners`.
void assign_owners(Topology& topology);

// Positions in double, [distinct, 3] relative to the surface's centre; used only while building.
using Points = Array<double>;
Points place(const double* vertices, const Topology& topology, Surface& surface, Report& report);

// The arrays that are fitted to the triangles.
struct Leaves {
  Levels shape;
  Array<float> triangles, boxes, oriented;  // Layouts as in Tree.
  float low[3], high[3];
  double size;  // Sum of the areas of the leaves' boxes.
  bool turned;  // Whether the edge bc of some face is less than half as long as another of its edges.
};
// Fits the leaves. Fills `normals` and `vertex_normals` of the surface, and volume and area of the report.
std::shared_ptr<Leaves> fit_leaves(const Points& points, const Topology& topology, Surface& surface, Report& report);
// Computes the boxes of all levels except the lowest.
void fit_nodes(Leaves& leaves);
// Bounds are widened by this fraction of the extent, since positions and values computed from them are rounded.
inline constexpr float kWiden = 4e-7f;
// The distance of missing children.
inline constexpr float kFar = 1e18f;

struct PartBox {
  double low[3], high[3];
};
// Returns for each box whether another box is nearer than the margin.
std::vector<uint8_t> find_meeting(const std::vector<PartBox>& boxes, double margin);

// Fills the report's fields about components. Returns which parts are inside out; empty if none.
std::vector<uint8_t> inspect_parts(const Points& points, const Topology& topology, const Leaves& leaves, double extent,
                                   Report& report);

// Returns how often the faces of solid parts must count, relative to other faces, so that what they enclose is inside
// even if other parts wind against it; 1 if they do not.
int weigh_solids(const Points& points, const Topology& topology);

// Computes Tree::dipoles; `faces` is the number of triangles.
Array<float> fit_dipoles(const Leaves& leaves, int64_t faces);

// The owners of a vertex that no face uses and of a vertex that several chunks use; other owners are chunk numbers.
inline constexpr uint8_t kUnused = 255, kShared = 254;

// Runs of leaves that are fitted together. They depend only on the number of leaves, so that sums are independent of
// the number of threads.
struct Chunks {
  int32_t leaves, length, count;

  explicit Chunks(int32_t leaf_count)
      : leaves(leaf_count), length(std::max(16, (leaf_count + 127) / 128)), count((leaf_count + length - 1) / length) {}
  int32_t begin(int chunk) const { return std::min(leaves, chunk * length); }
};

}  // namespace lumigrad::meshes
