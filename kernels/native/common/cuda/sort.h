// Sorting and summing arrays on the device. CUB computes the sums, and in the emulation the standard library.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lumigrad {

// Stable sort of `count` pairs by the bits [begin_bit, end_bit) of their keys. `values_in` may be null, for the numbers
// from 0 on. All arrays lie on the device; outputs may not overlap inputs. Scratch memory comes from the pool; the host
// does not wait.
void sort_pairs(const std::uint32_t* keys_in, std::uint32_t* keys_out, const std::uint32_t* values_in,
                std::uint32_t* values_out, int count, int begin_bit, int end_bit, cudaStream_t stream);

// out[i] = in[0] + ... + in[i - 1]; `out` may be `in`.
void exclusive_sum(const std::uint32_t* in, std::uint32_t* out, int count, cudaStream_t stream);
void exclusive_sum(const std::uint64_t* in, std::uint64_t* out, int count, cudaStream_t stream);
// out[i] = in[places[0]] + ... + in[places[i - 1]].
void exclusive_sum(const std::uint32_t* in, const std::uint32_t* places, std::uint32_t* out, int count,
                   cudaStream_t stream);

}  // namespace lumigrad
