// Prepared queries, retained renders and their backward passes on a CUDA device: the device's thread queues them one
// after the other, and the threads of their calls wait for the copies to the host.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <vector>

#include "common/cuda/memory.h"
#include "gaussians/cuda/kept.h"
#include "serving/cuda/streams.h"
#include "serving/passes/distance.h"
#include "serving/passes/retained.h"

namespace lumigrad::serving {

struct CudaRetained final : RetainedPass {
  using RetainedPass::RetainedPass;
  std::size_t bytes() const override { return kept.pass.bytes(); }

  gaussians::CudaKept kept;
  std::vector<DeviceBuffer<float>> images;  // In the order of the kind's images.
};

std::shared_ptr<DistanceEngine> make_cuda_distances(const Streams& streams);
std::shared_ptr<PassEngine> make_cuda_passes(const Streams& streams);

}  // namespace lumigrad::serving
