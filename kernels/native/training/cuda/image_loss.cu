// The image loss and its gradient. Blocks of threads take tiles of a view, with three channels if there are three and
// one otherwise: first for the map of dissimilarities and its derivatives, then for the gradient that follows from
// them. Channels are interleaved in an image, so that a block that takes all channels reads and writes whole lines.
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/primitives.cuh"
#include "training/cuda/engine.h"
#include "training/cuda/image_tile.cuh"
#include "training/cuda/plane.cuh"
#include "training/math/ssim.h"
#include "training/params.h"

namespace lumigrad::training {
namespace {

constexpr int kSumThreads = 1024;
// The number of blocks that sum the weights of a mask in a view.
constexpr int kParts = 64;

__device__ inline double inverse(double count) { return count > 0.0 ? 1.0 / count : 0.0; }

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

// A number, or 0 unless it is `there`. Unlike with a choice, the number is read before it is known whether it is.
__device__ inline float masked(float number, bool there) { return from_bits(bits(number) & (there ? -1 : 0)); }

// Sums the moments along a tile's columns.
template <class Target, int kChannels>
__device__ void sum_moments(const Call& call, const Place<kChannels>& place, Columns<kMoments>& columns) {
  const int column = static_cast<int>(threadIdx.x);
  if (column >= Place<kChannels>::kColumns) return;
  const ImageLoss& loss = call.loss;
  const int x = place.x + column / kChannels - kRadius, of_line = loss.width * loss.channels;
  const int64_t first = place.number(call, nearest_column(loss, x), 0, column % kChannels);
  const float* image = loss.image + first;
  const Target* target = static_cast<const Target*>(loss.target.data) + first;
  const Way way(loss, x, place.y);
  Window windows[kMoments];
#pragma unroll
  for (int r = 0; r < kHeight + 2 * kRadius; ++r) {
    const int64_t at = int64_t{way.line(r)} * of_line;
    const bool there = way.there(r);
    const float a = masked(image[at], there), difference = a - masked(number_of(target[at]), there);
    // The target from the difference, as the derivatives have it.
    const float y = a - difference, values[kMoments] = {a, difference, fma(a, a, y * y), difference * difference};
#pragma unroll
    for (int m = 0; m < kMoments; ++m) {
      windows[m].numbers[r % kTaps] = values[m];
      if (r >= 2 * kRadius) columns[(m * kHeight + r - 2 * kRadius) * kPitch + column] = windows[m].sum(r);
    }
  }
}

// 1 / a within a unit in the last place, without the quotient's branch.
__device__ inline float near_inverse(float a) {
  const float near = quick_inverse(a);
  return fma(near, fnma(a, near, 1.0f), near);
}

// Stores the numbers of a run, of which `left` are within the image. `wide`: whether four can be stored at once.
__device__ inline void store_run(float* to, const float (&from)[kRun], bool wide, int left) {
  if (wide) {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      if (j < left) to[j] = from[j];
    }
  }
}

template <int kChannels>
__global__ void __launch_bounds__(kThreads, kBlocks)
    map_kernel(const __grid_constant__ Call call, double* dissimilarities) {
  __shared__ Columns<kMoments> columns;
  const Place<kChannels> place(call);
  const ImageLoss& loss = call.loss;
  if (loss.target.numbers == Numbers::floats) {
    sum_moments<float>(call, place, columns);
  } else {
    sum_moments<uint8_t>(call, place, columns);
  }
  __syncthreads();
  const auto factor =
      static_cast<float>(loss.view_weight * loss.dssim * inverse(call.counts[2 * place.view + 1] * loss.channels));
  const bool wide = loss.width % kRun == 0;
  double sum = 0.0;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRuns; i += kThreads) {
    const Run<kChannels> run(i);
    const int px = place.x + run.x, py = place.y + run.y;
    if (px >= loss.width || py >= loss.height) continue;
    float moments[kMoments][kRun], derivatives[kDerivatives][kRun];
#pragma unroll
    for (int m = 0; m < kMoments; ++m) run.sums(columns, m, moments[m]);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const Dissimilarity<float> d =
          dissimilarity(Moments<float>{moments[0][j], moments[1][j], moments[2][j], moments[3][j]}, near_inverse);
      const bool counts = inside(loss, px + j, py, loss.valid ? kRadius : 0);
      const float weight = counts ? weight_at(loss.mask, place.pixel(call, px + j, py)) : 0.0f, scale = weight * factor;
      sum += d.value * weight;
      derivatives[0][j] = d.by_mean * scale;
      derivatives[1][j] = d.by_squares * scale;
      derivatives[2][j] = d.by_error * scale;
    }
    float* to = call.maps + place.in_map(call, px, py, run.channel);
#pragma unroll
    for (int d = 0; d < kDerivatives; ++d) store_run(to + d * call.map_size(), derivatives[d], wide, loss.width - px);
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) dissimilarities[blockIdx.x] = sum;
}

// Sums the derivatives along a tile's columns. Threads take the columns of each channel in order, as the maps have
// them.
template <int kChannels>
__device__ void sum_derivatives(const Call& call, const Place<kChannels>& place, Columns<kDerivatives>& columns) {
  constexpr int kOfChannel = Place<kChannels>::kColumns / kChannels;
  const int thread = static_cast<int>(threadIdx.x), channel = thread / kOfChannel, place_x = thread % kOfChannel;
  if (channel >= kChannels) return;
  const int x = place.x + place_x - kRadius, column = place_x * kChannels + channel;
  const float* maps[kDerivatives];
#pragma unroll
  for (int d = 0; d < kDerivatives; ++d) {
    maps[d] = call.maps + d * call.map_size() + place.in_map(call, nearest_column(call.loss, x), 0, channel);
  }
  const Way way(call.loss, x, place.y);
  Window windows[kDerivatives];
#pragma unroll
  for (int r = 0; r < kHeight + 2 * kRadius; ++r) {
    const int64_t at = int64_t{way.line(r)} * call.loss.width;
    const bool there = way.there(r);
#pragma unroll
    for (int d = 0; d < kDerivatives; ++d) {
      windows[d].numbers[r % kTaps] = there ? maps[d][at] : 0.0f;
      if (r >= 2 * kRadius) columns[(d * kHeight + r - 2 * kRadius) * kPitch + column] = windows[d].sum(r);
    }
  }
}

// The windows' sums of the derivatives for each number of a tile, which take the place of those along columns.
template <int kChannels>
__device__ void filter_derivatives(const Call& call, const Place<kChannels>& place, Columns<kDerivatives>& columns) {
  sum_derivatives(call, place, columns);
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  float sums[kRounds][kDerivatives][kRun];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
#pragma unroll
    for (int d = 0; d < kDerivatives; ++d) Run<kChannels>(thread + i * kThreads).sums(columns, d, sums[i][d]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const Run<kChannels> run(thread + i * kThreads);
#pragma unroll
    for (int d = 0; d < kDerivatives; ++d) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        columns[(d * kHeight + run.y) * kPitch + (run.x + j) * kChannels + run.channel] = sums[i][d][j];
      }
    }
  }
  __syncthreads();
}

// The numbers of a tile whose gradients a thread writes: a warp takes pieces of lines.
template <int kChannels>
struct Own {
  static constexpr int kCount = kLine * kHeight / kThreads, kWarps = kThreads / kWarp, kLines = kHeight / kWarps;
  const Place<kChannels>& place;
  const ImageLoss& loss;

  __device__ int line(int k) const { return static_cast<int>(threadIdx.x) / kWarp + k % kLines * kWarps; }
  __device__ int column(int k) const { return lane_index() + k / kLines * kWarp; }
  __device__ int x(int k) const { return place.x + column(k) / kChannels; }
  __device__ int y(int k) const { return place.y + line(k); }
  __device__ bool there(int k) const { return x(k) < loss.width && y(k) < loss.height; }
  // From the tile's first number to number k.
  __device__ int offset(int k) const {
    return (line(k) * loss.width + column(k) / kChannels) * loss.channels + column(k) % kChannels;
  }
};

// Reads all of a thread's numbers before it writes any.
template <class Target, int kChannels>
__device__ void load_own(const Own<kChannels>& own, int64_t first, float (&image)[Own<kChannels>::kCount],
                         float (&difference)[Own<kChannels>::kCount]) {
  const float* images = own.loss.image + first;
  const Target* targets = static_cast<const Target*>(own.loss.target.data) + first;
#pragma unroll
  for (int k = 0; k < Own<kChannels>::kCount; ++k) {
    const int at = own.there(k) ? own.offset(k) : 0;
    image[k] = images[at];
    difference[k] = image[k] - number_of(targets[at]);
  }
}

template <bool kWindows, int kChannels>
__global__ void __launch_bounds__(kThreads, kBlocks)
    gradient_kernel(const __grid_constant__ Call call, double* differences) {
  __shared__ Columns<kDerivatives> filtered;
  const Place<kChannels> place(call);
  const ImageLoss& loss = call.loss;
  if constexpr (kWindows) filter_derivatives(call, place, filtered);
  const double scale = loss.view_weight * inverse(call.counts[2 * place.view] * loss.channels);
  const auto l1 = static_cast<float>(scale * loss.l1), l2 = static_cast<float>(scale * loss.l2) * 2.0f;
  const int64_t first = place.number(call, place.x, place.y, 0);
  const Own<kChannels> own{place, loss};
  float image[own.kCount], difference[own.kCount];
  if (loss.target.numbers == Numbers::floats) {
    load_own<float>(own, first, image, difference);
  } else {
    load_own<uint8_t>(own, first, image, difference);
  }
  double sum_l1 = 0.0, sum_l2 = 0.0;
#pragma unroll
  for (int k = 0; k < own.kCount; ++k) {
    if (!own.there(k)) continue;
    const float weight = weight_at(loss.mask, place.pixel(call, own.x(k), own.y(k)));
    const float weighted = difference[k] * weight;
    sum_l1 += abs(weighted);
    sum_l2 += weighted * difference[k];
    const float slope = difference[k] > 0.0f ? l1 : difference[k] < 0.0f ? -l1 : 0.0f;
    float gradient = fma(l2, weighted, slope * weight);
    if constexpr (kWindows) {
      const auto sum = [&](int d) { return filtered[(d * kHeight + own.line(k)) * kPitch + own.column(k)]; };
      gradient = gradient + fma(difference[k], sum(2), fma(image[k], sum(1), sum(0)));
    }
    loss.gradient[first + own.offset(k)] = gradient;
  }
  sum_l1 = block_total<kThreads>(sum_l1);
  sum_l2 = block_total<kThreads>(sum_l2);
  if (threadIdx.x > 0) return;
  differences[2 * blockIdx.x] = sum_l1;
  differences[2 * blockIdx.x + 1] = sum_l2;
}

// Sums the results of each view's tiles, with a block per view.
__global__ void __launch_bounds__(kSumThreads)
    values_kernel(const __grid_constant__ Call call, const double* dissimilarities, const double* differences,
                  double* values) {
  const int view = static_cast<int>(blockIdx.x), tiles = call.tiles_of_view();
  double l1 = 0.0, l2 = 0.0, dssim = 0.0;
  for (int t = static_cast<int>(threadIdx.x); t < tiles; t += kSumThreads) {
    const int64_t tile = int64_t{view} * tiles + t;
    l1 += differences[2 * tile];
    l2 += differences[2 * tile + 1];
    if (dissimilarities != nullptr) dssim += dissimilarities[tile];
  }
  l1 = block_total<kSumThreads>(l1);
  l2 = block_total<kSumThreads>(l2);
  dssim = block_total<kSumThreads>(dssim);
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
            (loss.width + Place<kChannels>::kWidth - 1) / Place<kChannels>::kWidth,
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
  launch(values_kernel, static_cast<unsigned>(loss.views), kSumThreads, 0, stream, call, dissimilarities.data(),
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
