// Steps on a CUDA device.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "resident/machine.h"

namespace lumigrad::resident {

// Everything is queued on `stream`; the host waits for nothing but reports.
std::shared_ptr<Machine> make_cuda_machine(int device, cudaStream_t stream);

}  // namespace lumigrad::resident
