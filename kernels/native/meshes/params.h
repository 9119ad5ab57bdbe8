// Inputs and outputs of the mesh engine for one call: plain structs, the same for CPU and CUDA.
// Pointers are to the device's memory unless stated otherwise; null means absent (inputs) or not needed (outputs).
// Lengths are in metres; signed distances are positive outside.
#pragma once

#include <cstdint>

namespace lumigrad::meshes {

// Children of a node, and triangles of a leaf: one pack.
inline constexpr int kWide = 16;
inline constexpr int kMaxLevels = 8;
inline constexpr int kTriangleFloats = 9;   // Corner a and the edges u = b - a, v = c - a.
inline constexpr int kBoxFloats = 6;        // Low and high corner.
inline constexpr int kOrientedFloats = 15;  // Rotation (row-major), translation, half extents: |R p + t| <= h.
inline constexpr int kDipoleFloats = 23;    // See math/winding.h.

// The method that determines the inside. `none`: distances are unsigned; `normals`: by the pseudo-normal of the closest
// feature (Baerentzen and Aanaes 2005); `rays`: two of three axis-parallel rays first meet a back face; `winding`: the
// generalised winding number exceeds 1/2 (Jacobson et al. 2013; Barill et al. 2018).
enum class Sign : int32_t { none, normals, rays, winding };

class CudaMesh;

// A hierarchy of boxes over the triangles of a mesh: an implicit complete tree. Slot s = 16 leaf + lane holds a
// triangle. Leaf l is child l % 16 of node l / 16 of level 0; node j of level k is child j % 16 of node j / 16 of level
// k + 1; the last level has one node. Node j of level k has number level_begin[k] + j. A missing child has a box that
// is far from everything (low +1e18, high -1e18). Unused slots of the last leaf repeat its last triangle, with face -1.
// Positions are relative to `centre`.
struct Tree {
  int32_t leaves, levels;
  int32_t level_begin[kMaxLevels + 1];
  double centre[3];
  float extent;                 // Largest coordinate relative to `centre`; bounds are widened by a fraction of it.
  float low[3], high[3];        // Bounds of all triangles.
  bool inverted;                // Whether the enclosed volume is negative.
  const float* triangles;       // [leaves, 9, 16]; corner a is opposite the longest edge
  const float* boxes;           // [nodes, 6, 16] of the children
  const float* oriented;        // [nodes of level 0, 15, 16] of the leaves; CPU only
  const float* dipoles;         // [nodes, 23, 16] of the children; only for winding numbers
  const int32_t* faces;         // [slots] the caller's numbers; -1 if unused
  const float* normals;         // [slots, 3] unit; 0 if a triangle has nearly no area
  const int32_t* neighbours;    // [slots, 3] slot across the edges ab, bc, ca; below 0 if none
  const int32_t* corners;       // [slots, 3] vertices a, b, c
  const float* positions;       // [vertices, 3]
  const float* vertex_normals;  // [vertices, 3] pseudo-normals: sums of face normals, weighted by angle
  const CudaMesh* owner;        // Owner of a tree on a CUDA device, in host memory.
};

enum class Shape : int32_t { mesh, cuboid, grid };

// A shape in the world. p_object = rotation * p_world + translation; for a mesh, relative to its centre.
struct Obstacle {
  Shape shape;
  int32_t index;  // Index in the caller's list.
  float rotation[9], translation[3];
  // A mesh. `orientation`: -1 swaps inside and outside.
  Tree tree;
  Sign sign;
  float orientation;
  // A cuboid or a grid around the object's origin: half the edges, or half the span of the outermost voxel centres.
  float half[3];
  // A grid of signed distances, positive outside: [dims[0], dims[1], dims[2]] at voxel centres.
  const float* values;
  int32_t dims[3];
  float voxel;  // Edge.
};

// The enabled obstacles by environment: environment e has begin[e] to begin[e + 1] - 1. In host memory.
struct World {
  const Obstacle* obstacles;
  const int32_t* begin;  // [environments + 1]
  int32_t environments;
  int32_t listed;  // Length of the caller's list.
};

// Row (b, h, s) is sphere s of time step h of trajectory b: centre and radius in the world; a sphere with a negative
// radius is off.
struct Spheres {
  const float* rows;  // [batches, horizon, count, 4]
  int32_t batches, horizon, count;
  const int32_t* environments;  // [batches]; null if all 0
};

// `exact`: see docs/meshes.md. `curobo`, `curobo_field`: spec sections 3 to 7 and 5.
enum class Mode : int32_t { exact, curobo, curobo_field };

struct Settings {
  Mode mode;
  bool sweep, speed, maximum;  // `maximum`: over samples and obstacles, instead of the sum.
  float activation;            // Distance at which costs begin, >= 0.
  float reach;                 // Largest distance that is searched; may be infinite.
  int32_t samples;             // Samples of a sweep, for each half segment: exact, a power of two; curobo: steps.
  float dt;                    // Time between steps, seconds.
};

inline constexpr int kJacobianFloats = 10;  // Centre before (3), own centre (3), centre after (3), own radius.
inline constexpr int kMomentDoubles = 12;   // Force g (3), then sum of y g^T (9, row-major), in the object's frame.

// Costs do not include the weight. Rows are those of Spheres. For rows that are off everything is 0, except that
// distance is `reach` and face and obstacle are -1, as where nothing is found.
struct Outputs {
  float* cost;         // [rows]
  float* jacobian;     // [rows, 10] d cost / d centres and radius; curobo: own centre only, 0 elsewhere
  uint8_t* exhausted;  // [rows] 1 where half of a sweep found no contact, but ran out of samples
  // The closest obstacle to the centre:
  float* distance;    // [rows]
  float* normal;      // [rows, 3] d distance / d centre, in the world
  float* closest;     // [rows, 3] point of the surface, in the world; the centre if nothing is found
  int32_t* face;      // [rows] for a mesh; -1 otherwise
  int32_t* obstacle;  // [rows] in the caller's list
  uint8_t* beyond;    // [rows] 1 where nothing is found within `reach` and the centre is outside
  // Sums for the gradients of poses, over all samples: upstream * d cost / d (point in the object's frame), and its
  // outer product with that point.
  const float* upstream;  // [rows] d loss / d cost
  double* moments;        // [listed, 12], added to
};

}  // namespace lumigrad::meshes
