// The host's stand-in for sums with CUB.
#include "common/cuda/sort.h"

#include <functional>
#include <numeric>

#include "streams.h"

namespace lumigrad {

void exclusive_sum(const std::uint32_t* in, std::uint32_t* out, int count, cudaStream_t stream) {
  emulation::queue_work(stream, [=] { std::exclusive_scan(in, in + count, out, 0u); });
}

void exclusive_sum(const std::uint64_t* in, std::uint64_t* out, int count, cudaStream_t stream) {
  emulation::queue_work(stream, [=] { std::exclusive_scan(in, in + count, out, std::uint64_t{0}); });
}

void exclusive_sum(const std::uint32_t* in, const std::uint32_t* places, std::uint32_t* out, int count,
                   cudaStream_t stream) {
  emulation::queue_work(stream, [=] {
    std::transform_exclusive_scan(places, places + count, out, 0u, std::plus<>(),
                                  [in](auto place) { return in[place]; });
  });
}

}  // namespace lumigrad
