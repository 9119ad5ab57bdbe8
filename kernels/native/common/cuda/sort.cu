// Stable sorts of pairs on the device, a digit of eight bits at a time, the least significant first. A pass reads and
// writes each pair once (Adinets and Merrill 2022, "Onesweep", arXiv:2206.01784). CUB has the same algorithm, but
// clears memory before each pass and scans the histograms in a kernel of its own: from about 5,000 pairs on, 12
// operations of the device for 32 bits instead of 6. The device does nothing for 1 to 2 us between them, and a launch
// costs the host 5 us.
#include <algorithm>

#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "common/cuda/sort.h"

namespace lumigrad {
namespace {

constexpr int kBits = 8, kDigits = 1 << kBits, kMostPasses = 4;
// Threads of a block: one per digit, when a block looks for its places.
constexpr int kThreads = kDigits, kWarps = kThreads / kWarp;
// Pairs of a thread; fewer in short arrays, so that more multiprocessors have work.
constexpr int kItems = 16, kFewItems = 8, kShort = 1 << 19, kTiny = 1 << 12;
// Keys that a thread counts.
constexpr int kCounted = 8;
// Tiles that a thread looks at at a time.
constexpr unsigned kTogether = 4;

// The number of pairs with a digit, as published by a tile: 0 until it is known; then 1 more than the number in the
// tile alone; then, with the highest bit, the number in this and all earlier tiles.
constexpr unsigned kInclusive = 0x80000000u;

struct Pass {
  const unsigned *keys, *values;  // `values` is null for the numbers from 0 on.
  unsigned *keys_out, *values_out;
  unsigned count, mask;
  int shift;
  const unsigned* histogram;     // [digits]
  unsigned* next;                // The next tile to be taken.
  volatile unsigned* published;  // [tiles, digits]

  __device__ unsigned digit(unsigned key) const { return key >> shift & mask; }
};

// Counts the digits of all passes, the first of which is at bit `begin`.
__global__ void __launch_bounds__(kThreads) digits_kernel(const unsigned* keys, unsigned count, int begin,
                                                          unsigned last_mask, int passes, unsigned* histograms) {
  __shared__ SharedArray<unsigned, kMostPasses * kDigits> counts;
  const int thread = static_cast<int>(threadIdx.x);
  for (int p = 0; p < passes; ++p) counts[p * kDigits + thread] = 0;
  __syncthreads();
  const unsigned first = blockIdx.x * (kCounted * kThreads) + threadIdx.x;
  unsigned found[kCounted];
#pragma unroll
  for (int i = 0; i < kCounted; ++i) {
    const unsigned at = first + i * kThreads;
    found[i] = at < count ? keys[at] : 0;
  }
#pragma unroll
  for (int i = 0; i < kCounted; ++i) {
    if (first + i * kThreads >= count) break;
    const unsigned key = found[i] >> begin;
    for (int p = 0; p < passes; ++p) {
      const unsigned mask = p + 1 < passes ? kDigits - 1u : last_mask;
      atomicAdd(&counts[p * kDigits + static_cast<int>(key >> kBits * p & mask)], 1u);
    }
  }
  __syncthreads();
  for (int p = 0; p < passes; ++p) {
    const unsigned number = counts[p * kDigits + thread];
    if (number > 0) atomicAdd(&histograms[p * kDigits + thread], number);
  }
}

// Lanes with the same digit as the calling one, as bits: by a ballot for each bit, as in CUB, since __match_any_sync
// takes its time for each different digit. The whole warp must call it.
__device__ unsigned lanes_with(unsigned digit) {
  unsigned equal = kWholeWarp;
#pragma unroll
  for (int b = 0; b < kBits; ++b) {
    const bool set = (digit >> b & 1u) != 0;
    const unsigned with = __ballot_sync(kWholeWarp, set);
    equal &= set ? with : ~with;
  }
  return equal;
}

// The sum of the values of the threads before the calling one. All threads of the block must call it together.
__device__ unsigned sum_before(unsigned value, SharedArray<unsigned, kWarps>& of_warps) {
  const int lane = lane_index(), warp = static_cast<int>(threadIdx.x) / kWarp;
  unsigned sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const unsigned other = __shfl_up_sync(kWholeWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  sum -= value;
  for (int w = 0; w < warp; ++w) sum += of_warps[w];
  return sum;
}

// The number of pairs with the calling thread's digit in the tiles before `tile`.
__device__ unsigned look_back(const Pass& pass, unsigned tile) {
  unsigned before = 0;
  while (true) {
    // Several at a time, since each takes as long as the way to the second-level cache and back.
    unsigned found[kTogether];
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      found[k] = kInclusive;
      if (k < tile) found[k] = pass.published[(tile - 1 - k) * kDigits + threadIdx.x];
    }
#pragma unroll
    for (unsigned k = 0; k < kTogether; ++k) {
      if ((found[k] & kInclusive) != 0) return before + (found[k] & ~kInclusive);
      if (found[k] == 0) break;
      before += found[k] - 1;
      --tile;
    }
  }
}

template <int kPairs>
struct Tile {
  SharedArray<unsigned, kWarps * kDigits> of_warps;  // Numbers of each warp's pairs by digit, then their places.
  SharedArray<unsigned, kThreads * kPairs> sorted;
  SharedArray<unsigned, kDigits> offsets;  // From the place of a pair in the tile to its place among all.
  SharedArray<unsigned, kWarps> starts, totals;
  SharedArray<unsigned, 1> number;

  // Finds how many pairs of the warp with the same digit precede each pair of the lane, and counts the warp's digits.
  __device__ void rank(const Pass& pass, const unsigned (&keys)[kPairs], unsigned (&ranks)[kPairs]) {
    const int row = static_cast<int>(threadIdx.x) / kWarp * kDigits;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const unsigned digit = pass.digit(keys[i]), equal = lanes_with(digit);
      const int before = __popc(equal & lanes_below());
      unsigned earlier = 0;
      if (before == 0) {
        earlier = of_warps[row + static_cast<int>(digit)];
        of_warps[row + static_cast<int>(digit)] = earlier + static_cast<unsigned>(__popc(equal));
      }
      ranks[i] = __shfl_sync(kWholeWarp, earlier, __ffs(static_cast<int>(equal)) - 1) + static_cast<unsigned>(before);
      __syncwarp();
    }
  }

  // Finds the places of the tile's pairs with the calling thread's digit. All threads must call it together.
  __device__ void place(const Pass& pass, unsigned tile, unsigned in_all) {
    const int digit = static_cast<int>(threadIdx.x);
    unsigned total = 0;
    for (int w = 0; w < kWarps; ++w) {
      const unsigned count = of_warps[w * kDigits + digit];
      of_warps[w * kDigits + digit] = total;
      total += count;
    }
    volatile unsigned& published = pass.published[tile * kDigits + threadIdx.x];
    published = tile == 0 ? kInclusive | total : total + 1;
    const unsigned start = sum_before(total, starts);
    const unsigned begin = sum_before(in_all, totals);
    for (int w = 0; w < kWarps; ++w) of_warps[w * kDigits + digit] += start;
    const unsigned before = look_back(pass, tile);
    if (tile > 0) published = kInclusive | (before + total);
    offsets[digit] = begin + before - start;
  }
};

// Sorts by one digit. Blocks take tiles in ascending order, so that those a block waits for are done or in progress.
template <int kPairs>
__global__ void __launch_bounds__(kThreads, kPairs > kFewItems ? 3 : 4)
    sweep_kernel(const __grid_constant__ Pass pass) {
  __shared__ Tile<kPairs> shared;
  const int thread = static_cast<int>(threadIdx.x), row = thread / kWarp * kDigits;
  if (thread == 0) shared.number[0] = atomicAdd(pass.next, 1u);
  for (int w = 0; w < kWarps; ++w) shared.of_warps[w * kDigits + thread] = 0;
  __syncthreads();
  const unsigned tile = shared.number[0];
  const unsigned first =
      (tile * kThreads + static_cast<unsigned>(thread / kWarp * kWarp)) * kPairs + static_cast<unsigned>(lane_index());
  // Places beyond the end have the largest key: they stay behind all pairs, and are not written.
  unsigned keys[kPairs], values[kPairs], ranks[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const unsigned at = first + i * kWarp;
    keys[i] = at < pass.count ? pass.keys[at] : ~0u;
  }
  shared.rank(pass, keys, ranks);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const unsigned at = first + i * kWarp;
    values[i] = pass.values != nullptr && at < pass.count ? pass.values[at] : at;
  }
  const unsigned in_all = pass.histogram[thread];
  __syncthreads();
  shared.place(pass, tile, in_all);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    ranks[i] += shared.of_warps[row + static_cast<int>(pass.digit(keys[i]))];
    shared.sorted[static_cast<int>(ranks[i])] = keys[i];
  }
  __syncthreads();
  unsigned to[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int place = thread + i * kThreads;
    const unsigned key = shared.sorted[place];
    to[i] = shared.offsets[static_cast<int>(pass.digit(key))] + static_cast<unsigned>(place);
    if (to[i] < pass.count) pass.keys_out[to[i]] = key;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPairs; ++i) shared.sorted[static_cast<int>(ranks[i])] = values[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (to[i] < pass.count) pass.values_out[to[i]] = shared.sorted[thread + i * kThreads];
  }
}

}  // namespace

void sort_pairs(const std::uint32_t* keys_in, std::uint32_t* keys_out, const std::uint32_t* values_in,
                std::uint32_t* values_out, int count, int begin_bit, int end_bit, cudaStream_t stream) {
  if (count == 0) return;
  const auto n = static_cast<unsigned>(count);
  const int items = count <= kTiny ? 1 : count <= kShort ? kFewItems : kItems;
  const auto sweep = items == 1 ? sweep_kernel<1> : items == kFewItems ? sweep_kernel<kFewItems> : sweep_kernel<kItems>;
  const auto tiles = blocks_for(n, static_cast<unsigned>(kThreads * items));
  const int passes = std::max(1, (end_bit - begin_bit + kBits - 1) / kBits);
  const int last_bits = end_bit - begin_bit - kBits * (passes - 1);
  const unsigned last_mask = (1u << last_bits) - 1u;
  // One after the other: histograms, next tiles, and numbers that tiles publish.
  const std::size_t published = static_cast<std::size_t>(tiles) * kDigits, heads = std::size_t{kDigits + 1} * passes;
  DeviceBuffer<unsigned> state(heads + published * passes, stream);
  DeviceBuffer<unsigned> keys(passes > 1 ? n : 0, stream), values(passes > 1 ? n : 0, stream);
  check(cudaMemsetAsync(state.data(), 0, state.bytes(), stream), "clearing the state of a sort");
  launch(digits_kernel, blocks_for(n, kThreads * kCounted), kThreads, 0, stream, keys_in, n, begin_bit, last_mask,
         passes, state.data());
  const unsigned *from_keys = keys_in, *from_values = values_in;
  for (int p = 0; p < passes; ++p) {
    // The last pass writes to the outputs, and those before it alternate.
    const bool is_out = (passes - 1 - p) % 2 == 0;
    const Pass pass{from_keys,
                    from_values,
                    is_out ? keys_out : keys.data(),
                    is_out ? values_out : values.data(),
                    n,
                    p + 1 < passes ? kDigits - 1u : last_mask,
                    begin_bit + kBits * p,
                    state.data() + kDigits * p,
                    state.data() + kDigits * passes + p,
                    state.data() + heads + published * p};
    launch(sweep, tiles, kThreads, 0, stream, pass);
    from_keys = pass.keys_out;
    from_values = pass.values_out;
  }
}

}  // namespace lumigrad
