// A mesh in host memory: what registration found, and the hierarchy that the CPU searches. It never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/array.h"
#include "meshes/params.h"
#include "meshes/topology.h"

namespace lumigrad::meshes {

struct Leaves;

// Boxes of leaves may grow to this, relative to those of the last build, before `moved` builds anew.
inline constexpr double kWorstGrowth = 2.0;

class Mesh : public std::enable_shared_from_this<Mesh> {
 public:
  // From vertices [count, 3] and faces [face_count, 3]; indices are in range, values finite. Throws
  // std::invalid_argument if no face has an area.
  static std::shared_ptr<const Mesh> build(const double* vertices, int64_t count, const int32_t* faces,
                                           int64_t face_count);
  // The same faces with other vertices: boxes are fitted again in the order that is there, unless they would be much
  // worse than at first (kWorstGrowth), or vertices that were one are no more, or a face that had no area has one now,
  // or the edge opposite a face's first corner is less than half its longest; then all is built anew.
  std::shared_ptr<const Mesh> moved(const double* vertices) const;

  const Report& report() const { return report_; }
  const Topology& topology() const { return *topology_; }
  const Surface& surface() const { return *surface_; }
  // Whether `moved` made it without fitting.
  bool rebuilt() const { return rebuilt_; }
  // Of the boxes of all leaves to that of the mesh, relative to the last build: 1, larger after moves.
  double growth() const { return growth_; }
  Tree tree() const;
  // The same mesh with Tree::dipoles; itself if it has them.
  std::shared_ptr<const Mesh> with_dipoles() const;
  std::size_t bytes() const;

 private:
  void fit(const double* vertices);

  Report report_{};
  std::shared_ptr<const Array<int32_t>> faces_;  // As given.
  std::shared_ptr<const Topology> topology_;
  std::shared_ptr<const Surface> surface_;
  std::shared_ptr<const Leaves> leaves_;
  std::shared_ptr<const Array<float>> dipoles_;
  double built_size_ = 0.0, growth_ = 1.0;  // See build_mesh.cpp.
  bool rebuilt_ = false;
};

}  // namespace lumigrad::meshes
