// The mesh engine on a CUDA device: everything is queued on the caller's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "common/cuda/memory.h"
#include "common/cuda/staging.h"
#include "common/cuda/timer.h"
#include "meshes/mesh.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

// A mesh on the device. Topology, normals, dipoles and the order of triangles are copied from the host's Mesh: searches
// visit fewer nodes with the host's splits than with an order that a device computes quickly. Triangles and boxes are
// computed on the device from the positions. Other streams than the one that it was built on must wait for that stream
// before they use it, and must have finished with it before it is destroyed (see DeviceBuffer).
class CudaMesh {
 public:
  static std::shared_ptr<const CudaMesh> build(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream);
  // For a Mesh that Mesh::moved() returned without rebuilding it: the topology on the device is shared.
  std::shared_ptr<const CudaMesh> moved(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream) const;
  Tree tree() const { return tree_; }  // Pointers are to the device's memory.
  std::size_t bytes() const;

 private:
  struct Order {
    DeviceBuffer<int32_t> faces, neighbours, corners;
  };
  void fit(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream);

  std::shared_ptr<const Order> order_;
  DeviceBuffer<float> triangles_, boxes_, dipoles_, positions_, normals_, vertex_normals_;
  Tree tree_{};
};

// State that the calls on a device share; only one call may use it at a time.
struct CudaWorkspace {
  DeviceStaging staging;
};

// Works on the current device. The world's meshes have the trees of CudaMesh, and its grids are in the device's memory.
// The timer's stage is "query".
DeviceTimer cuda_evaluate(const World& world, const Spheres& spheres, const Settings& settings, const Outputs& outputs,
                          CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::meshes
