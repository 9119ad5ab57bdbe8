#include "common/cuda/pairs.h"

#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.h"
#include "common/room.h"
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

std::size_t pairs_within_room(std::size_t limit) {
  // Memory of a pair: its tile and its entry, both sorted, and that of the sort; blocks may be larger than needed.
  constexpr std::int64_t kBytes = 32;
  const MemoryRoom* room = memory_room();
  if (room == nullptr) return limit;
  return std::min(limit, static_cast<std::size_t>(std::max<std::int64_t>(room->left(), 0) / kBytes));
}

}  // namespace lumigrad
