// The host's stand-in for sorts and sums with CUB.
#include "common/cuda/sort.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "streams.h"

namespace lumigrad {
namespace {

void sort_now(const std::uint32_t* keys_in, std::uint32_t* keys_out, const std::uint32_t* values_in,
              std::uint32_t* values_out, int count, int begin_bit, int end_bit) {
  const std::uint32_t below = end_bit >= 32 ? ~0u : (1u << end_bit) - 1;
  const auto bits = [&](int i) { return (keys_in[i] & below) >> begin_bit; };
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bits(a) < bits(b); });
  for (int i = 0; i < count; ++i) {
    keys_out[i] = keys_in[order[i]];
    values_out[i] = values_in[order[i]];
  }
}

}  // namespace

void sort_pairs(const std::uint32_t* keys_in, std::uint32_t* keys_out, const std::uint32_t* values_in,
                std::uint32_t* values_out, int count, int begin_bit, int end_bit, cudaStream_t stream) {
  emulation::queue_work(stream, [=] { sort_now(keys_in, keys_out, values_in, values_out, count, begin_bit, end_bit); });
}

void exclusive_sum(const std::uint32_t* in, std::uint32_t* out, int count, cudaStream_t stream) {
  emulation::queue_work(stream, [=] { std::exclusive_scan(in, in + count, out, 0u); });
}

void exclusive_sum(const std::uint64_t* in, std::uint64_t* out, int count, cudaStream_t stream) {
  emulation::queue_work(stream, [=] { std::exclusive_scan(in, in + count, out, std::uint64_t{0}); });
}

}  // namespace lumigrad
