#include <algorithm>

#include "common/launch.h"
#include "spheres/cuda.h"

namespace lumigrad::spheres {

CudaWorkspace::CudaWorkspace() {
  check(cudaMallocHost(reinterpret_cast<void**>(&pairs_), sizeof(*pairs_)), "allocating host memory");
  *pairs_ = 0;
}

CudaWorkspace::~CudaWorkspace() { cudaFreeHost(pairs_); }

std::size_t CudaWorkspace::pair_capacity(std::size_t spheres, std::size_t tiles) {
  // The device may write meanwhile; the number of an earlier call serves as well.
  const auto last = static_cast<std::size_t>(*static_cast<volatile unsigned long long*>(pairs_));
  if (last > pair_limit_) return 0;
  if (expected_ == 0 && last == 0) return std::min(4 * spheres + tiles, pair_limit_);
  // What is expected falls slowly, so that scenes that take turns keep their room.
  expected_ = std::max({last + last / 4, expected_ - expected_ / 8, tiles});
  return std::min(expected_, pair_limit_);
}

}  // namespace lumigrad::spheres
