// Renders of prepared requests on a CUDA device: the device's thread queues them, batch after batch, and the threads of
// their calls wait for the copies to the host.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "serving/render.h"

namespace lumigrad::serving {

// Kernels run on one stream of the device, and copies to the host on the other.
std::shared_ptr<Renderer> make_cuda_renderer(int device, cudaStream_t kernels, cudaStream_t copies);

}  // namespace lumigrad::serving
