// The sphere engine on a CUDA device: everything is queued on the caller's stream, and the host never waits for it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/device_timer.h"
#include "spheres/params.h"

namespace lumigrad::spheres {

// What one call learns for the next on the same device. One call at a time.
class CudaWorkspace {
 public:
  CudaWorkspace();
  CudaWorkspace(const CudaWorkspace&) = delete;
  CudaWorkspace& operator=(const CudaWorkspace&) = delete;
  ~CudaWorkspace();

  // Room to provide for (tile, sphere) pairs: what the last calls needed and a quarter more.
  std::size_t pair_capacity(std::size_t spheres, std::size_t tiles);
  // Where the device writes how many pairs a call had; host memory.
  unsigned long long* pairs() { return pairs_; }
  // More pairs than this are not listed: tiles then go through all spheres, which is slower but needs no memory.
  void set_pair_limit(std::size_t limit) { pair_limit_ = limit; }

 private:
  unsigned long long* pairs_ = nullptr;
  std::size_t expected_ = 0;
  std::size_t pair_limit_ = std::size_t{1} << 26;
};

// Both work on the current device. The timer's stages are "setup", "sort", "bin", "blend" and "finish".
DeviceTimer cuda_forward(const Camera& camera, const Settings& settings, const Scene& scene, const Outputs& outputs,
                         CudaWorkspace& workspace, cudaStream_t stream);
DeviceTimer cuda_backward(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                          const Gradients& gradients, CudaWorkspace& workspace, cudaStream_t stream);

}  // namespace lumigrad::spheres
