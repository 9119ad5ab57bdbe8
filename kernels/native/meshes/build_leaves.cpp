// What is fitted to the triangles of each leaf: their packet, normals, box.
#include <algorithm>
#include <vector>

#include "common/threads.h"
#include "meshes/build.h"
#include "meshes/build_angle.h"
#include "meshes/build_chunks.h"
#include "meshes/build_lanes.h"
#include "meshes/build_oriented.h"

namespace lumigrad::meshes {
namespace {

// Faces that are lower than this part of their longest edge have no normal: that of their float corners would be noise.
constexpr double kLeastHeight = 1e-6;

struct Share {
  int32_t vertex;
  float normal[3];
};
// What a chunk adds up for itself.
struct ChunkSums {
  double area = 0.0, volume = 0.0, size = 0.0;
  bool turned = false;
  std::vector<Share> shares;  // Of vertices that other chunks use too.
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
    // The largest angle is that at a, and the rest that the others leave.
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
    // Twice: what is computed in its frame is rounded more often.
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

}  // namespace lumigrad::meshes
