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

// A mesh on the device. Topology, normals and dipoles come from the host's Mesh, and so does the order of triangles:
// the host's splits take fewer visits than what a device sorts quickly. Triangles and boxes are made here, of the
// positions. It is used on the stream that it was made on, or where that has been waited for; like all of DeviceBuffer
// it must not go before what other streams do with it.
class CudaMesh {
 public:
  static std::shared_ptr<const CudaMesh> build(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream);
  // For a Mesh that came of mesh.moved() without being rebuilt: the topology stays where it is.
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

// What calls share on a device. One call at a time.
struct CudaWorkspace {
  DeviceStaging staging;
};

// Works on the current device; Obstacle::tree of the world's meshes are of CudaMesh, grids on the device. The timer's
// stage is "query".
DeviceTimer cuda_evaluate(const World& world, const Spheres& spheres, const Settings& settings, const Outputs& outputs,
                          CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::meshes
