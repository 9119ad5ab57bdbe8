#include "common/cuda/pairs.h"

#include "common/cuda/launch.h"
#include "common/threads.h"

namespace lumigrad {

PairCount::PairCount() {
  check(cudaMallocHost(reinterpret_cast<void**>(&place_), sizeof(*place_)), "allocating host memory");
  const cudaError_t status = cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming);
  if (status != cudaSuccess) cudaFreeHost(place_);
  check(status, "creating an event");
}

PairCount::~PairCount() {
  cudaEventDestroy(copied_);
  cudaFreeHost(place_);
}

void PairCount::copy(const unsigned long long* pairs, cudaStream_t stream) {
  check(cudaMemcpyAsync(place_, pairs, sizeof(*pairs), cudaMemcpyDeviceToHost, stream), "copying a count");
  check(cudaEventRecord(copied_, stream), "recording an event");
}

std::size_t PairCount::wait() const {
  check(cudaEventSynchronize(copied_), "counting the pairs of tiles and items");
  // What follows takes most of the time, and cannot be stopped.
  check_stop();
  return static_cast<std::size_t>(*place_);
}

}  // namespace lumigrad
