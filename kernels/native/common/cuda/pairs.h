// The number of (tile, item) pairs of a call, for which the host makes room.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace lumigrad {

// A number that the device computes, on its way to the host.
class PairCount {
 public:
  PairCount();
  PairCount(const PairCount&) = delete;
  PairCount& operator=(const PairCount&) = delete;
  ~PairCount();

  // Queues the copy of a number on the device.
  void copy(const unsigned long long* pairs, cudaStream_t stream);
  // Waits for the copy, not for what was queued after it.
  std::size_t wait() const;

 private:
  unsigned long long* place_ = nullptr;  // Memory of the host that the device can reach.
  cudaEvent_t copied_ = nullptr;
};

// The most pairs that may be listed, at most `limit`, in the memory that the calling thread may still take.
std::size_t pairs_within_room(std::size_t limit);

}  // namespace lumigrad
