// A tile of an image, which a block of threads filters: first down the columns of the tile and its reach, then along
// its lines.
#pragma once

#include "common/cuda/primitives.cuh"
#include "training/math/ssim.h"
#include "training/params.h"

namespace lumigrad::training {

constexpr int kThreads = 128;
constexpr int kBlocks = 6;  // Blocks of a multiprocessor: the shared memory of an H100 has room for as many.
// Size of a tile: lines of as many numbers of all its channels. Each thread filters a column of it and of its reach.
constexpr int kLine = 96, kHeight = 16;
constexpr int kMoments = 4, kDerivatives = 3;
// Pixels that a thread filters along a line: their windows share most numbers.
constexpr int kRun = 4, kRuns = kLine / kRun * kHeight, kRounds = kRuns / kThreads;
static_assert(kRuns % kThreads == 0);
// From a line to the next in shared memory: 3 more than a multiple of 4, so that the threads of a warp, which take runs
// of three channels and of the next line, read different banks.
constexpr int kPitch = 127;

// A call of the image loss.
struct Call {
  ImageLoss loss;
  int tiles_x, tiles_y;
  int groups;  // Groups of channels: each has a block for every tile.
  // The weights of pixels and of positions of windows, summed for each view.
  const double* counts;
  // [kDerivatives, views, channels, height, width]
  float* maps;

  __host__ __device__ int64_t pixels() const { return int64_t{loss.height} * loss.width; }
  __host__ __device__ int64_t map_size() const { return pixels() * loss.channels * loss.views; }
  __host__ __device__ int tiles_of_view() const { return tiles_x * tiles_y * groups; }
};

// The tile of a block; `channel` is the first of kChannels.
template <int kChannels>
struct Place {
  static constexpr int kWidth = kLine / kChannels;
  static constexpr int kColumns = (kWidth + 2 * kRadius) * kChannels;
  static_assert(kColumns <= kThreads && kColumns <= kPitch);
  int view, channel, x, y;

  __device__ explicit Place(const Call& call) {
    const int block = static_cast<int>(blockIdx.x), tile = block % call.tiles_of_view() / call.groups;
    view = block / call.tiles_of_view();
    // The channels of a tile are consecutive blocks, since they share the image's lines of memory.
    channel = block % call.groups * kChannels;
    x = tile % call.tiles_x * kWidth;
    y = tile / call.tiles_x * kHeight;
  }
  __device__ int64_t pixel(const Call& call, int px, int py) const {
    return view * call.pixels() + int64_t{py} * call.loss.width + px;
  }
  // The index of the block's channel `c` at a pixel.
  __device__ int64_t number(const Call& call, int px, int py, int c) const {
    return pixel(call, px, py) * call.loss.channels + channel + c;
  }
  __device__ int64_t in_map(const Call& call, int px, int py, int c) const {
    return (int64_t{view} * call.loss.channels + channel + c) * call.pixels() + int64_t{py} * call.loss.width + px;
  }
};

__device__ inline bool inside(const ImageLoss& loss, int x, int y, int edge) {
  return x >= edge && y >= edge && x < loss.width - edge && y < loss.height - edge;
}

// The weighted sum of 11 numbers: `at(k)` gives number k; number 5 is the middle. The smallest terms come first, which
// rounds less.
template <class At>
__device__ inline float window_sum(const At& at) {
  float sum = window_weight(kRadius) * (at(0) + at(2 * kRadius));
#pragma unroll
  for (int d = kRadius - 1; d > 0; --d) sum = fma(window_weight(d), at(kRadius - d) + at(kRadius + d), sum);
  return fma(window_weight(0), at(kRadius), sum);
}

// The last 11 of the numbers that a thread meets along its column.
struct Window {
  float numbers[kTaps];

  // The weighted sum once number `last` is there. Places are known when the loop over the column is unrolled.
  __device__ float sum(int last) const {
    return window_sum([&](int k) { return numbers[(last + 1 + k) % kTaps]; });
  }
};

// Sums of the windows along columns, for each number of a tile's lines and of their reach.
template <int kCount>
using Columns = SharedArray<float, kCount * kHeight * kPitch>;

// Four pixels of a channel in a line of a tile.
template <int kChannels>
struct Run {
  int x, y, channel;

  __device__ explicit Run(int i) {
    constexpr int kOfChannel = Place<kChannels>::kWidth / kRun;
    x = i % kOfChannel * kRun;
    channel = i / kOfChannel % kChannels;
    y = i / (kOfChannel * kChannels);
  }

  // The windows' sums for each pixel, from those along columns.
  template <class OfColumns>
  __device__ void sums(OfColumns& columns, int which, float (&to)[kRun]) const {
    const int from = (which * kHeight + y) * kPitch + x * kChannels + channel;
    float numbers[kRun + 2 * kRadius];
#pragma unroll
    for (int k = 0; k < kRun + 2 * kRadius; ++k) numbers[k] = columns[from + k * kChannels];
#pragma unroll
    for (int j = 0; j < kRun; ++j) to[j] = window_sum([&](int k) { return numbers[j + k]; });
  }
};

// The way of a thread down a column of a tile and its reach. Reads are within the image also where the column is not,
// so that none waits for a branch; there, numbers are 0.
struct Way {
  int y, height;
  bool within;

  __device__ Way(const ImageLoss& loss, int x, int tile_y)
      : y(tile_y - kRadius), height(loss.height), within(x >= 0 && x < loss.width) {}
  __device__ int line(int step) const { return ::min(::max(y + step, 0), height - 1); }
  __device__ bool there(int step) const { return within && y + step >= 0 && y + step < height; }
};

__device__ inline int nearest_column(const ImageLoss& loss, int x) { return ::min(::max(x, 0), loss.width - 1); }

}  // namespace lumigrad::training
