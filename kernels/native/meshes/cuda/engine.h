// The mesh engine on a CUDA device: all work is queued on the caller's stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "common/cuda/event.h"
#include "common/cuda/memory.h"
#include "common/cuda/staging.h"
#include "common/cuda/timer.h"
#include "meshes/cuda/refit.h"
#include "meshes/mesh.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

class CudaMesh;

// The state that the calls on a device share; only one call may use it at a time.
struct CudaWorkspace {
  DeviceStaging staging;
  FoundOnHost found;
};

// A mesh that the device refitted: its hierarchy, and what is known of it.
struct Refit {
  std::shared_ptr<const CudaMesh> mesh;
  Report report;
  double growth;
};

// A mesh on the device. Topology, normals, dipoles and the order of triangles are copied from the host's Mesh: searches
// visit fewer nodes with the host's splits than with an order that a device computes quickly. Triangles and boxes are
// computed on the device from the positions; after `refitted`, normals are, too. Calls on any stream may use the mesh
// between begin_use and end_use: they wait for the stream on which it was built, and the mesh waits for them before it
// returns its memory.
class CudaMesh {
 public:
  CudaMesh() = default;
  ~CudaMesh();
  static std::shared_ptr<const CudaMesh> build(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream);
  // Copies a Mesh that Mesh::moved() returned without rebuilding it, and shares the topology on the device.
  std::shared_ptr<const CudaMesh> moved(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream) const;
  // Refits the hierarchy to vertices [count, 3] in the device's memory, and waits for it. `base`, in host memory, is
  // one solid of the same topology; coordinates must be finite and at most `most`. Returns nothing if the host must do
  // it, because it would refuse the vertices or rebuild the mesh, or because searches would need more than the
  // hierarchy.
  std::optional<Refit> refitted(const Mesh& base, const double* vertices, double most, CudaWorkspace& workspace,
                                cudaStream_t stream) const;
  Tree tree() const { return tree_; }  // Pointers are to the device's memory.
  std::size_t bytes() const;

  // Makes work that is queued on `stream` from now on wait until the mesh is complete.
  void begin_use(cudaStream_t stream) const;
  // Ends a use on `stream`: only work queued there so far uses the mesh.
  void end_use(cudaStream_t stream) const;

 private:
  struct Order {
    cudaStream_t stream;
    DeviceBuffer<int32_t> faces, neighbours, corners;
    std::shared_ptr<const Topology> topology;
    mutable std::mutex mutex;
    mutable std::unique_ptr<const Links> links;  // Made by the first refit.

    const Links& links_for(const Mesh& mesh, DeviceStaging& staging, cudaStream_t on) const;
    std::size_t link_bytes() const;
  };
  bool is_home(cudaStream_t stream) const { return stream == stream_ && stream == order_->stream; }
  void fit(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream);
  void place(cudaStream_t stream);
  void finish();

  std::shared_ptr<const Order> order_;
  DeviceBuffer<float> triangles_, boxes_, dipoles_, positions_, normals_, vertex_normals_;
  Tree tree_{};
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<DeviceEvent> complete_;
  // The last use on each other stream.
  mutable std::mutex mutex_;
  mutable std::map<cudaStream_t, DeviceEvent> uses_;
};

// Runs on the current device. The world's meshes have trees of CudaMesh, and its grids are in the device's memory.
// The timer's stage is "query".
DeviceTimer cuda_evaluate(const World& world, const Spheres& spheres, const Settings& settings, const Outputs& outputs,
                          CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::meshes
