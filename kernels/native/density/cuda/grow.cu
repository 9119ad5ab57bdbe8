// Statistics of rows, and the decision to keep, clone, split or prune each, on the device.
#include "common/cuda/launch.h"
#include "common/cuda/primitives.cuh"
#include "common/cuda/sort.h"
#include "density/cuda/engine.h"
#include "density/math/grow.h"

namespace lumigrad::density {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kWarps = static_cast<int>(kThreads) / kWarp;

template <int kAxes>
__global__ void __launch_bounds__(kThreads) accumulate_kernel(Observed observed, Statistics to) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= observed.count) return;
  for (int view = 0; view < observed.views; ++view) observe<kAxes>(observed, to, view, row);
}

__device__ inline bool is_in_group(Fate fate, int group) {
  if (group == 0) return fate == kKept || fate == kCloned;
  return fate == (group == 1 ? kCloned : kSplit);
}

// Runs a block per chunk.
template <int kAxes>
__global__ void __launch_bounds__(kThreads)
    classify_kernel(Candidates rows, Limits limits, Fate* fates, int32_t* starts) {
  const int64_t chunks = gridDim.x, begin = int64_t{blockIdx.x} * kChunk;
  int counts[kGroups] = {};
  for (int64_t first = begin; first < begin + kChunk; first += kThreads) {
    const int64_t row = first + threadIdx.x;
    const Fate fate = row < rows.count ? fate_of<kAxes>(limits, rows, row) : kGone;
    if (row < rows.count) fates[row] = fate;
    for (int g = 0; g < kGroups; ++g) counts[g] += __syncthreads_count(is_in_group(fate, g));
  }
  if (threadIdx.x != 0) return;
  for (int g = 0; g < kGroups; ++g) starts[g * chunks + blockIdx.x] = counts[g];
  if (blockIdx.x == 0) starts[kGroups * chunks] = 0;
}

// Runs a block per chunk; the rows of a group keep their order.
__global__ void __launch_bounds__(kThreads)
    list_kernel(const Fate* fates, const int32_t* starts, int32_t count, int32_t* sources) {
  __shared__ SharedArray<int, kGroups * kWarps> of_warps;
  const int64_t chunks = gridDim.x, begin = int64_t{blockIdx.x} * kChunk;
  const int32_t splits = starts[kGroups * chunks] - starts[2 * chunks];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int32_t next[kGroups];
  for (int g = 0; g < kGroups; ++g) next[g] = starts[g * chunks + blockIdx.x];
  for (int64_t first = begin; first < begin + kChunk; first += kThreads) {
    const int64_t row = first + threadIdx.x;
    const Fate fate = row < count ? fates[row] : kGone;
    unsigned members[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      members[g] = __ballot_sync(kWholeWarp, is_in_group(fate, g));
      if (lane_index() == 0) of_warps[g * kWarps + warp] = __popc(members[g]);
    }
    __syncthreads();
    for (int g = 0; g < kGroups; ++g) {
      int place = next[g] + __popc(members[g] & lanes_below());
      for (int w = 0; w < kWarps; ++w) {
        const int others = of_warps[g * kWarps + w];
        place += w < warp ? others : 0;
        next[g] += others;
      }
      if (!is_in_group(fate, g)) continue;
      sources[place] = static_cast<int32_t>(row);
      if (g == kGroups - 1) sources[place + splits] = static_cast<int32_t>(row);
    }
    __syncthreads();
  }
}

}  // namespace

void cuda_accumulate(const Observed& observed, const Statistics& to, cudaStream_t stream) {
  const unsigned blocks = blocks_for(static_cast<std::size_t>(observed.count), kThreads);
  launch(observed.axes == 2 ? &accumulate_kernel<2> : &accumulate_kernel<3>, blocks, kThreads, 0, stream, observed, to);
}

void cuda_classify(const Candidates& rows, const Limits& limits, Fate* fates, int32_t* starts, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(chunks_of(rows.count));
  launch(rows.axes == 3 ? &classify_kernel<3> : &classify_kernel<1>, chunks, kThreads, 0, stream, rows, limits, fates,
         starts);
  auto* sums = reinterpret_cast<uint32_t*>(starts);
  exclusive_sum(sums, sums, kGroups * static_cast<int>(chunks) + 1, stream);
}

void cuda_list_rows(const Fate* fates, const int32_t* starts, int32_t count, int32_t* sources, cudaStream_t stream) {
  launch(list_kernel, static_cast<unsigned>(chunks_of(count)), kThreads, 0, stream, fates, starts, count, sources);
}

}  // namespace lumigrad::density
