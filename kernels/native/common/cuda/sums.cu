#include <thrust/iterator/permutation_iterator.h>

#include <cub/device/device_scan.cuh>

#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/sort.h"

namespace lumigrad {
namespace {

// Calls a CUB operator twice: first for the size of its scratch memory, then to do the work.
template <class Operator>
void with_scratch(const Operator& run, cudaStream_t stream, const char* doing) {
  std::size_t bytes = 0;
  check(run(nullptr, bytes), doing);
  DeviceBuffer<char> scratch(bytes, stream);
  check(run(scratch.data(), bytes), doing);
}

template <class In, class Number>
void sum_before(In in, Number* out, int count, cudaStream_t stream) {
  if (count == 0) return;
  const auto run = [&](void* scratch, std::size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(scratch, bytes, in, out, count, stream);
  };
  with_scratch(run, stream, "summing");
}

}  // namespace

void exclusive_sum(const std::uint32_t* in, std::uint32_t* out, int count, cudaStream_t stream) {
  sum_before(in, out, count, stream);
}

void exclusive_sum(const std::uint64_t* in, std::uint64_t* out, int count, cudaStream_t stream) {
  sum_before(in, out, count, stream);
}

void exclusive_sum(const std::uint32_t* in, const std::uint32_t* places, std::uint32_t* out, int count,
                   cudaStream_t stream) {
  sum_before(thrust::make_permutation_iterator(in, places), out, count, stream);
}

}  // namespace lumigrad
