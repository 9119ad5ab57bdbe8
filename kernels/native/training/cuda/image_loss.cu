// The image loss and its gradient. Blocks of threads take tiles of a view, with three channels if there are three and
// one otherwise: first for the map of dissimilarities and its derivatives, then for the gradient that follows from
// them. Channels are interleaved in an image, so that a block that takes all channels reads and writes whole lines.
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "training/cuda/engine.h"
#include "training/cuda/plane.cuh"
#include "training/math/ssim.h"
#include "training/params.h"

namespace lumigrad::training {
namespace {

constexpr int kWidth = 32, kHeight = 16, kThreads = 256;  // Size of a tile, and threads of its block.
constexpr int kReachX = kWidth + 2 * kRadius, kReachY = kHeight + 2 * kRadius;
constexpr int kReach = kReachX * kReachY, kLines = kWidth * kReachY;
constexpr int kMoments = 4, kDerivatives = 3;
// The number of blocks that sum the weights of a mask in a view.
constexpr int kParts = 64;

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

__device__ inline double inverse(double count) { return count > 0.0 ? 1.0 / count : 0.0; }

// The weighted sum of 11 numbers: `at(k)` gives number k; number 5 is the middle.
template <class At>
__device__ inline float window_sum(const At& at) {
  float sum = window_weight(0) * at(kRadius);
#pragma unroll
  for (int d = 1; d <= kRadius; ++d) sum = fma(window_weight(d), at(kRadius - d) + at(kRadius + d), sum);
  return sum;
}

// Calls body(x, y) for the thread's positions of the tile that are within the image.
template <int kChannels, class Body>
__device__ inline void each_position(const Call& call, const Place<kChannels>& place, const Body& body) {
  for (int i = static_cast<int>(threadIdx.x); i < kWidth * kHeight; i += kThreads) {
    const int x = place.x + i % kWidth, y = place.y + i / kWidth;
    if (x < call.loss.width && y < call.loss.height) body(i % kWidth, i / kWidth);
  }
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ ImageLoss loss, double* parts) {
  const int view = static_cast<int>(blockIdx.x) / kParts, part = static_cast<int>(blockIdx.x) % kParts;
  const int64_t pixels = int64_t{loss.height} * loss.width;
  const int64_t begin = pixels * part / kParts, end = pixels * (part + 1) / kParts;
  double all = 0.0, inner = 0.0;
  for (int64_t p = begin + threadIdx.x; p < end; p += kThreads) {
    const double weight = weight_at(loss.mask, view * pixels + p);
    all += weight;
    const int x = static_cast<int>(p % loss.width), y = static_cast<int>(p / loss.width);
    if (inside(loss, x, y, loss.valid ? kRadius : 0)) inner += weight;
  }
  all = block_total<kThreads>(all);
  inner = block_total<kThreads>(inner);
  if (threadIdx.x > 0) return;
  parts[2 * blockIdx.x] = all;
  parts[2 * blockIdx.x + 1] = inner;
}

// Sums the counts, with a thread per view. Without a mask there are no parts.
__global__ void counts_kernel(const __grid_constant__ ImageLoss loss, const double* parts, double* counts) {
  const int view = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), edge = loss.valid ? 2 * kRadius : 0;
  if (view >= loss.views) return;
  double all = static_cast<double>(loss.height) * loss.width;
  double inner = static_cast<double>(loss.height - edge) * (loss.width - edge);
  if (parts != nullptr) {
    all = inner = 0.0;
    for (int part = view * kParts; part < (view + 1) * kParts; ++part) {
      all += parts[2 * part];
      inner += parts[2 * part + 1];
    }
  }
  counts[2 * view] = all;
  counts[2 * view + 1] = inner;
}

template <int kChannels>
__global__ void __launch_bounds__(kThreads) map_kernel(const __grid_constant__ Call call, double* dissimilarities) {
  constexpr int kNumbers = kReach * kChannels, kLine = kReachX * kChannels;
  __shared__ SharedArray<float, 2 * kNumbers> image;
  __shared__ SharedArray<float, kMoments * kLines> lines;
  const Place<kChannels> place(call);
  const ImageLoss& loss = call.loss;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kNumbers; i += kThreads) {
    const int x = place.x + i % kLine / kChannels - kRadius, y = place.y + i / kLine - kRadius;
    const bool there = inside(loss, x, y, 0);
    const int64_t at = there ? place.number(call, x, y, i % kChannels) : 0;
    const float value = there ? loss.image[at] : 0.0f;
    image[i] = value;
    image[kNumbers + i] = there ? value - plane_at(loss.target, at) : 0.0f;
  }
  const auto factor =
      static_cast<float>(loss.view_weight * loss.dssim * inverse(call.counts[2 * place.view + 1] * loss.channels));
  double sum = 0.0;
#pragma unroll 1
  for (int c = 0; c < kChannels; ++c) {
    __syncthreads();
    for (int i = thread; i < kLines; i += kThreads) {
      const int from = (i / kWidth * kReachX + i % kWidth) * kChannels + c;
      const auto x = [&](int k) { return image[from + k * kChannels]; };
      const auto difference = [&](int k) { return image[kNumbers + from + k * kChannels]; };
      const auto y = [&](int k) { return x(k) - difference(k); };
      lines[i] = window_sum(x);
      lines[kLines + i] = window_sum(difference);
      lines[2 * kLines + i] = window_sum([&](int k) { return fma(x(k), x(k), y(k) * y(k)); });
      lines[3 * kLines + i] = window_sum([&](int k) { return difference(k) * difference(k); });
    }
    __syncthreads();
    each_position(call, place, [&](int x, int y) {
      const auto across = [&](int moment) {
        return window_sum([&](int k) { return lines[moment * kLines + (y + k) * kWidth + x]; });
      };
      const Dissimilarity<float> d = dissimilarity(Moments<float>{across(0), across(1), across(2), across(3)});
      const int px = place.x + x, py = place.y + y;
      const bool counts = inside(loss, px, py, loss.valid ? kRadius : 0);
      const float weight = counts ? weight_at(loss.mask, place.pixel(call, px, py)) : 0.0f, scale = weight * factor;
      sum += d.value * weight;
      float* to = call.maps + place.in_map(call, px, py, c);
      to[0] = d.by_mean * scale;
      to[call.map_size()] = d.by_squares * scale;
      to[2 * call.map_size()] = d.by_error * scale;
    });
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) dissimilarities[blockIdx.x] = sum;
}

// The derivatives of channel `c` around a tile, filtered along the lines.
template <int kChannels>
__device__ void load_derivatives(const Call& call, const Place<kChannels>& place, int c,
                                 SharedArray<float, kDerivatives * kReach>& maps,
                                 SharedArray<float, kDerivatives * kLines>& lines) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kReach; i += kThreads) {
    const int x = place.x + i % kReachX - kRadius, y = place.y + i / kReachX - kRadius;
    const bool there = inside(call.loss, x, y, 0);
    const float* from = call.maps + (there ? place.in_map(call, x, y, c) : 0);
    for (int d = 0; d < kDerivatives; ++d) maps[d * kReach + i] = there ? from[d * call.map_size()] : 0.0f;
  }
  __syncthreads();
  for (int i = thread; i < kDerivatives * kLines; i += kThreads) {
    const int from = i / kLines * kReach + i % kLines / kWidth * kReachX + i % kWidth;
    lines[i] = window_sum([&](int k) { return maps[from + k]; });
  }
  __syncthreads();
}

// The windows' part of the gradient for each number of the tile, with interleaved channels.
template <int kChannels>
__device__ void filter_derivatives(const Call& call, const Place<kChannels>& place,
                                   SharedArray<float, kWidth * kHeight * kChannels>& filtered) {
  __shared__ SharedArray<float, kDerivatives * kReach> maps;
  __shared__ SharedArray<float, kDerivatives * kLines> lines;
#pragma unroll 1
  for (int c = 0; c < kChannels; ++c) {
    load_derivatives(call, place, c, maps, lines);
    each_position(call, place, [&](int x, int y) {
      const int64_t at = place.number(call, place.x + x, place.y + y, c);
      const float image = call.loss.image[at], difference = image - plane_at(call.loss.target, at);
      const auto across = [&](int derivative) {
        return window_sum([&](int k) { return lines[derivative * kLines + (y + k) * kWidth + x]; });
      };
      filtered[(y * kWidth + x) * kChannels + c] = fma(difference, across(2), fma(image, across(1), across(0)));
    });
  }
  __syncthreads();
}

template <bool kWindows, int kChannels>
__global__ void __launch_bounds__(kThreads) gradient_kernel(const __grid_constant__ Call call, double* differences) {
  constexpr int kLine = kWidth * kChannels;
  __shared__ SharedArray<float, kLine * kHeight> filtered;
  const Place<kChannels> place(call);
  const ImageLoss& loss = call.loss;
  if constexpr (kWindows) filter_derivatives(call, place, filtered);
  const double scale = loss.view_weight * inverse(call.counts[2 * place.view] * loss.channels);
  const auto l1 = static_cast<float>(scale * loss.l1), l2 = static_cast<float>(scale * loss.l2) * 2.0f;
  double sum_l1 = 0.0, sum_l2 = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < kLine * kHeight; i += kThreads) {
    const int x = place.x + i % kLine / kChannels, y = place.y + i / kLine;
    if (x >= loss.width || y >= loss.height) continue;
    const int64_t at = place.number(call, x, y, i % kChannels);
    const float difference = loss.image[at] - plane_at(loss.target, at);
    const float weight = weight_at(loss.mask, place.pixel(call, x, y));
    const float weighted = difference * weight;
    sum_l1 += abs(weighted);
    sum_l2 += weighted * difference;
    const float slope = difference > 0.0f ? l1 : difference < 0.0f ? -l1 : 0.0f;
    float gradient = fma(l2, weighted, slope * weight);
    if constexpr (kWindows) gradient = gradient + filtered[i];
    loss.gradient[at] = gradient;
  }
  sum_l1 = block_total<kThreads>(sum_l1);
  sum_l2 = block_total<kThreads>(sum_l2);
  if (threadIdx.x > 0) return;
  differences[2 * blockIdx.x] = sum_l1;
  differences[2 * blockIdx.x + 1] = sum_l2;
}

// Sums the results of each view's tiles, with a block per view.
__global__ void __launch_bounds__(kThreads)
    values_kernel(const __grid_constant__ Call call, const double* dissimilarities, const double* differences,
                  double* values) {
  const int view = static_cast<int>(blockIdx.x), tiles = call.tiles_of_view();
  double l1 = 0.0, l2 = 0.0, dssim = 0.0;
  for (int t = static_cast<int>(threadIdx.x); t < tiles; t += kThreads) {
    const int64_t tile = int64_t{view} * tiles + t;
    l1 += differences[2 * tile];
    l2 += differences[2 * tile + 1];
    if (dissimilarities != nullptr) dssim += dissimilarities[tile];
  }
  l1 = block_total<kThreads>(l1);
  l2 = block_total<kThreads>(l2);
  dssim = block_total<kThreads>(dssim);
  if (threadIdx.x > 0) return;
  const double pixels = call.counts[2 * view], positions = call.counts[2 * view + 1];
  double* to = values + view * kLossValues;
  to[kWeight] = pixels;
  to[kL1] = l1 * inverse(pixels * call.loss.channels);
  to[kL2] = l2 * inverse(pixels * call.loss.channels);
  to[kDssim] = dssim * inverse(positions * call.loss.channels);
}

DeviceBuffer<double> count_views(const ImageLoss& loss, cudaStream_t stream) {
  const auto views = static_cast<unsigned>(loss.views);
  DeviceBuffer<double> counts(2 * std::size_t{views}, stream), parts;
  if (loss.mask.data != nullptr) {
    parts = DeviceBuffer<double>(2 * std::size_t{views} * kParts, stream);
    launch(count_kernel, views * kParts, kThreads, 0, stream, loss, parts.data());
  }
  launch(counts_kernel, blocks_for(views, kThreads), kThreads, 0, stream, loss, parts.data(), counts.data());
  return counts;
}

template <int kChannels>
void queue(const ImageLoss& loss, double* values, cudaStream_t stream) {
  const DeviceBuffer<double> counts = count_views(loss, stream);
  Call call{loss,
            (loss.width + kWidth - 1) / kWidth,
            (loss.height + kHeight - 1) / kHeight,
            loss.channels / kChannels,
            counts.data(),
            nullptr};
  const auto tiles = static_cast<unsigned>(call.tiles_of_view() * loss.views);
  DeviceBuffer<double> differences(2 * std::size_t{tiles}, stream), dissimilarities;
  DeviceBuffer<float> maps;
  if (loss.dssim != 0.0f) {
    dissimilarities = DeviceBuffer<double>(tiles, stream);
    maps = DeviceBuffer<float>(static_cast<std::size_t>(kDerivatives * call.map_size()), stream);
    call.maps = maps.data();
    launch(map_kernel<kChannels>, tiles, kThreads, 0, stream, call, dissimilarities.data());
    launch(gradient_kernel<true, kChannels>, tiles, kThreads, 0, stream, call, differences.data());
  } else {
    launch(gradient_kernel<false, kChannels>, tiles, kThreads, 0, stream, call, differences.data());
  }
  launch(values_kernel, static_cast<unsigned>(loss.views), kThreads, 0, stream, call, dissimilarities.data(),
         differences.data(), values);
}

}  // namespace

DeviceTimer cuda_image_loss(const ImageLoss& loss, double* values, cudaStream_t stream) {
  DeviceTimer timer(stream);
  if (loss.channels == 3) {
    queue<3>(loss, values, stream);
  } else {
    queue<1>(loss, values, stream);
  }
  timer.mark("image_loss");
  return timer;
}

}  // namespace lumigrad::training
