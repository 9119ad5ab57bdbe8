// Computes the triangles, normals and boxes of each leaf, then the boxes of the nodes above them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/pool.h"
#include "common/threads.h"
#include "meshes/build/face.h"
#include "meshes/build/oriented_box.h"
#include "meshes/build/partition.h"
#include "meshes/build/stages.h"
#include "meshes/mesh.h"
#include "meshes/params.h"

namespace lumigrad::meshes {
namespace {

// The triangles of a leaf side by side, in double: loops over the lanes become SIMD.
using Lanes = double[kWide];

// Corner a, the edges u = b - a and v = c - a, and values derived from them.
struct LeafLanes {
  Lanes a[3], u[3], v[3];
  Lanes cross[3], twice;  // u x v, and its length
  Lanes uu, vv, ww, uv;   // Squared lengths of ab, ca, bc; u . v
};

inline void gather(const double* points, const int32_t* corners, LeafLanes& leaf) {
  for (int lane = 0; lane < kWide; ++lane) {
    const double* a = points + 3ll * corners[3 * lane];
    const double* b = points + 3ll * corners[3 * lane + 1];
    const double* c = points + 3ll * corners[3 * lane + 2];
    for (int k = 0; k < 3; ++k) {
      leaf.a[k][lane] = a[k];
      leaf.u[k][lane] = b[k] - a[k];
      leaf.v[k][lane] = c[k] - a[k];
    }
  }
}

inline void measure(LeafLanes& leaf) {
  for (int l = 0; l < kWide; ++l) {
    const double ux = leaf.u[0][l], uy = leaf.u[1][l], uz = leaf.u[2][l];
    const double vx = leaf.v[0][l], vy = leaf.v[1][l], vz = leaf.v[2][l];
    const double wx = vx - ux, wy = vy - uy, wz = vz - uz;
    const double nx = uy * vz - uz * vy, ny = uz * vx - ux * vz, nz = ux * vy - uy * vx;
    leaf.cross[0][l] = nx;
    leaf.cross[1][l] = ny;
    leaf.cross[2][l] = nz;
    leaf.twice[l] = std::sqrt(nx * nx + ny * ny + nz * nz);
    leaf.uu[l] = ux * ux + uy * uy + uz * uz;
    leaf.vv[l] = vx * vx + vy * vy + vz * vz;
    leaf.ww[l] = wx * wx + wy * wy + wz * wz;
    leaf.uv[l] = ux * vx + uy * vy + uz * vz;
  }
}

struct Share {
  int32_t vertex;
  float normal[3];
};
// The sums of one chunk.
struct ChunkSums {
  double area = 0.0, volume = 0.0, size = 0.0;
  bool turned = false;
  std::vector<Share> shares;  // Terms of normals of vertices that other chunks use too.
};

struct FaceLanes {
  alignas(64) float normal[3][kWide], angle[3][kWide];
  bool turned;
};

void face_normals(const LeafLanes& leaf, FaceLanes& face) {
  int turned = 0;
  for (int l = 0; l < kWide; ++l) {
    const double twice = leaf.twice[l], uu = leaf.uu[l], vv = leaf.vv[l], ww = leaf.ww[l];
    const double two = uu > vv ? uu : vv, longest = two > ww ? two : ww;
    const double inverse = twice > kLeastHeight * longest ? 1.0 / twice : 0.0;
    for (int k = 0; k < 3; ++k) face.normal[k][l] = static_cast<float>(leaf.cross[k][l] * inverse);
    turned |= ww < 0.25 * longest;
    const float y = static_cast<float>(twice);
    // The angle at a is the largest, so it is computed as pi minus the other two angles.
    const float at_b = angle_of(y, static_cast<float>(uu - leaf.uv[l]));
    const float at_c = angle_of(y, static_cast<float>(vv - leaf.uv[l]));
    face.angle[0][l] = 3.14159265f - at_b - at_c;
    face.angle[1][l] = at_b;
    face.angle[2][l] = at_c;
  }
  face.turned = turned != 0;
}

class LeafFitter {
 public:
  LeafFitter(const Points& points, const Topology& topology, Surface& surface, Leaves& leaves)
      : points_(points), topology_(topology), surface_(surface), leaves_(leaves), widen_(kWiden * surface.extent) {}

  void fit(int32_t leaf, uint8_t chunk, ChunkSums& sums) const {
    LeafLanes lanes;
    FaceLanes face;
    const int64_t slot = static_cast<int64_t>(leaf) * kWide;
    const int count = static_cast<int>(std::min<int64_t>(kWide, topology_.faces() - slot));
    const int32_t* corners = topology_.corners.data() + 3 * slot;
    gather(points_.data(), corners, lanes);
    measure(lanes);
    face_normals(lanes, face);
    sums.turned |= face.turned;
    for (int l = 0; l < count; ++l) {
      sums.area += 0.5 * lanes.twice[l];
      sums.volume +=
          (lanes.a[0][l] * lanes.cross[0][l] + lanes.a[1][l] * lanes.cross[1][l] + lanes.a[2][l] * lanes.cross[2][l]) /
          6.0;
    }
    float* normals = surface_.normals.data() + 3 * slot;
    for (int l = 0; l < kWide; ++l) {
      for (int k = 0; k < 3; ++k) normals[3 * l + k] = face.normal[k][l];
    }
    add_vertex_normals(corners, count, face, chunk, sums);
    float* triangles = leaves_.triangles.data() + static_cast<int64_t>(leaf) * kTriangleFloats * kWide;
    store_triangles(corners, triangles);
    float direction[3] = {0.0f, 0.0f, 0.0f};
    for (int l = 0; l < count; ++l) {
      for (int k = 0; k < 3; ++k) direction[k] += static_cast<float>(lanes.cross[k][l]);
    }
    store_boxes(leaf, triangles, direction, sums);
  }

 private:
  void add_vertex_normals(const int32_t* corners, int count, const FaceLanes& face, uint8_t chunk,
                          ChunkSums& sums) const {
    for (int l = 0; l < count; ++l) {
      for (int corner = 0; corner < 3; ++corner) {
        const int32_t vertex = corners[3 * l + corner];
        const float angle = face.angle[corner][l];
        const float part[3] = {angle * face.normal[0][l], angle * face.normal[1][l], angle * face.normal[2][l]};
        if (topology_.owners[vertex] == chunk) {
          for (int k = 0; k < 3; ++k) surface_.vertex_normals[3ll * vertex + k] += part[k];
        } else {
          sums.shares.push_back({vertex, {part[0], part[1], part[2]}});
        }
      }
    }
  }

  void store_triangles(const int32_t* corners, float* out) const {
    const float* positions = surface_.positions.data();
    const float rounder = rounder_of(surface_.extent);
    for (int l = 0; l < kWide; ++l) {
      const int32_t* at = corners + 3 * l;
      for (int k = 0; k < 3; ++k) {
        const auto corner = [&](int i) { return on_grid(positions[3ll * at[i] + k], rounder); };
        const float a = corner(0);
        out[k * kWide + l] = a;
        out[(3 + k) * kWide + l] = corner(1) - a;
        out[(6 + k) * kWide + l] = corner(2) - a;
      }
    }
  }

  void store_boxes(int32_t leaf, const float* triangles, const float* direction, ChunkSums& sums) const {
    float low[3], high[3];
    double edge[3];
    for (int k = 0; k < 3; ++k) {
      range_of(triangles, k, low[k], high[k]);
      edge[k] = static_cast<double>(high[k]) - low[k];
    }
    sums.size += 2.0 * (edge[0] * edge[1] + edge[1] * edge[2] + edge[2] * edge[0]);
    float* box = leaves_.boxes.data() + static_cast<int64_t>(leaf / kWide) * kBoxFloats * kWide + leaf % kWide;
    for (int k = 0; k < 3; ++k) {
      box[k * kWide] = low[k] - widen_;
      box[(3 + k) * kWide] = high[k] + widen_;
    }
    // Widened twice as much as the other boxes: computations in its frame have more rounding errors.
    const OrientedBox oriented = oriented_box(triangles, low, high, direction, 2.0f * widen_);
    float* out = leaves_.oriented.data() + static_cast<int64_t>(leaf / kWide) * kOrientedFloats * kWide + leaf % kWide;
    for (int k = 0; k < kOrientedFloats; ++k) out[k * kWide] = oriented.values[k];
  }

  const Points& points_;
  const Topology& topology_;
  Surface& surface_;
  Leaves& leaves_;
  float widen_;
};

void fill_missing(Leaves& leaves) {
  const int32_t slots = leaves.shape.nodes_of(0) * kWide;
  for (int32_t leaf = leaves.shape.leaves; leaf < slots; ++leaf) {
    float* box = leaves.boxes.data() + static_cast<int64_t>(leaf / kWide) * kBoxFloats * kWide + leaf % kWide;
    for (int k = 0; k < kBoxFloats; ++k) box[k * kWide] = k < 3 ? kFar : -kFar;
    float* out = leaves.oriented.data() + static_cast<int64_t>(leaf / kWide) * kOrientedFloats * kWide + leaf % kWide;
    for (int k = 0; k < kOrientedFloats; ++k) out[k * kWide] = k == 9 ? kFar : 0.0f;
  }
}

std::shared_ptr<Leaves> empty_leaves(int64_t faces) {
  auto leaves = std::make_shared<Leaves>();
  leaves->shape = shape_of(faces);
  const auto nodes = static_cast<std::size_t>(leaves->shape.nodes());
  const auto lowest = static_cast<std::size_t>(leaves->shape.nodes_of(0));
  leaves->triangles = Array<float>(static_cast<std::size_t>(leaves->shape.leaves) * kTriangleFloats * kWide);
  leaves->boxes = Array<float>(nodes * kBoxFloats * kWide);
  leaves->oriented = Array<float>(lowest * kOrientedFloats * kWide);
  fill_missing(*leaves);
  return leaves;
}

void clear_vertex_normals(Surface& surface, int64_t distinct) {
  surface.vertex_normals = Array<float>(static_cast<std::size_t>(3 * distinct));
  constexpr int64_t kPart = 1 << 18;
  const int64_t count = 3 * distinct;
  for_parts(static_cast<int>((count + kPart - 1) / kPart), [&](int p) {
    std::fill(surface.vertex_normals.begin() + p * kPart,
              surface.vertex_normals.begin() + std::min(count, (p + 1) * kPart), 0.0f);
  });
}

}  // namespace

std::shared_ptr<Leaves> fit_leaves(const Points& points, const Topology& topology, Surface& surface, Report& report) {
  std::shared_ptr<Leaves> leaves = empty_leaves(topology.faces());
  const std::size_t slots = static_cast<std::size_t>(leaves->shape.leaves) * kWide;
  surface.normals = Array<float>(3 * static_cast<std::size_t>(topology.faces()), 3 * slots);
  clear_vertex_normals(surface, topology.distinct);
  const Chunks chunks(leaves->shape.leaves);
  std::vector<ChunkSums> sums(chunks.count);
  const LeafFitter fitter(points, topology, surface, *leaves);
  for_parts(chunks.count, [&](int chunk) {
    for (int32_t leaf = chunks.begin(chunk); leaf < chunks.begin(chunk + 1); ++leaf) {
      fitter.fit(leaf, static_cast<uint8_t>(chunk), sums[chunk]);
    }
  });
  report.area = report.volume = leaves->size = 0.0;
  leaves->turned = false;
  for (const ChunkSums& s : sums) {
    report.area += s.area;
    report.volume += s.volume;
    leaves->size += s.size;
    leaves->turned |= s.turned;
    for (const Share& share : s.shares) {
      for (int k = 0; k < 3; ++k) surface.vertex_normals[3ll * share.vertex + k] += share.normal[k];
    }
  }
  return leaves;
}

// Boxes of the nodes above the leaves.
namespace {

// The box around all children of a node.
void enclose(const float* children, float* low, float* high) {
  for (int k = 0; k < 3; ++k) {
    low[k] = *std::min_element(children + k * kWide, children + (k + 1) * kWide);
    high[k] = *std::max_element(children + (3 + k) * kWide, children + (4 + k) * kWide);
  }
}

}  // namespace

void fit_nodes(Leaves& leaves) {
  const Levels& shape = leaves.shape;
  const auto box_of = [&](int level, int32_t node) {
    return leaves.boxes.data() + static_cast<int64_t>(shape.level_begin[level] + node) * kBoxFloats * kWide;
  };
  for (int level = 1; level < shape.levels; ++level) {
    const int32_t below = shape.nodes_of(level - 1), slots = shape.nodes_of(level) * kWide;
    const int parts = parts_for(slots);
    for_parts(parts, [&](int p) {
      for (int64_t child = static_cast<int64_t>(slots) * p / parts;
           child < static_cast<int64_t>(slots) * (p + 1) / parts; ++child) {
        float low[3] = {kFar, kFar, kFar}, high[3] = {-kFar, -kFar, -kFar};
        if (child < below) enclose(box_of(level - 1, static_cast<int32_t>(child)), low, high);
        float* box = box_of(level, static_cast<int32_t>(child / kWide)) + child % kWide;
        for (int k = 0; k < 3; ++k) {
          box[k * kWide] = low[k];
          box[(3 + k) * kWide] = high[k];
        }
      }
    });
  }
  enclose(box_of(shape.levels - 1, 0), leaves.low, leaves.high);
}

}  // namespace lumigrad::meshes
