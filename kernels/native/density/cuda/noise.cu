// Random numbers and noise on the device, with a thread per row.
#include "common/cuda/launch.h"
#include "density/cuda/engine.h"
#include "density/math/noise.h"
#include "density/math/random.h"

namespace lumigrad::density {
namespace {

constexpr unsigned kThreads = 256;

__device__ inline int64_t row_of_thread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) words_kernel(Draw draw, uint32_t first, int64_t count, uint32_t* words) {
  const int64_t row = row_of_thread();
  if (row >= count) return;
  const Words w = words_of(draw, first + static_cast<uint32_t>(row));
  words[4 * row] = w.a;
  words[4 * row + 1] = w.b;
  words[4 * row + 2] = w.c;
  words[4 * row + 3] = w.d;
}

__global__ void __launch_bounds__(kThreads) normals_kernel(Draw draw, uint32_t first, int64_t count, float* values) {
  const int64_t row = row_of_thread();
  if (row >= count) return;
  const Words w = words_of(draw, first + static_cast<uint32_t>(row));
  const NormalPair<float> ab = normal_pair(unit_of(w.a), turn_of(w.b)), cd = normal_pair(unit_of(w.c), turn_of(w.d));
  values[4 * row] = ab.first;
  values[4 * row + 1] = ab.second;
  values[4 * row + 2] = cd.first;
  values[4 * row + 3] = cd.second;
}

__global__ void __launch_bounds__(kThreads) noise_kernel(Gaussians g, Draw draw, float strength) {
  const int64_t row = row_of_thread();
  if (row >= g.count) return;
  const Words w = words_of(draw, static_cast<uint32_t>(row));
  const NormalPair<float> xy = normal_pair(unit_of(w.a), turn_of(w.b)), z = normal_pair(unit_of(w.c), turn_of(w.d));
  const float gate = strength * noise_gate(g.opacities[row]);
  const float *q = g.quats + 4 * row, *s = g.scales + 3 * row;
  const gaussians::Triple<float> offset = covariance_times<float>({q[0], q[1], q[2], q[3]}, {s[0], s[1], s[2]},
                                                                  {xy.first * gate, xy.second * gate, z.first * gate});
  float* mean = g.means + 3 * row;
  mean[0] += offset.x;
  mean[1] += offset.y;
  mean[2] += offset.z;
}

unsigned blocks_of(int64_t count) { return blocks_for(static_cast<std::size_t>(count), kThreads); }

}  // namespace

void cuda_random_words(const Draw& draw, uint32_t first, int64_t count, uint32_t* words, cudaStream_t stream) {
  launch(words_kernel, blocks_of(count), kThreads, 0, stream, draw, first, count, words);
}

void cuda_normals(const Draw& draw, uint32_t first, int64_t count, float* values, cudaStream_t stream) {
  launch(normals_kernel, blocks_of(count), kThreads, 0, stream, draw, first, count, values);
}

void cuda_add_noise(const Gaussians& g, const Draw& draw, float strength, cudaStream_t stream) {
  launch(noise_kernel, blocks_of(g.count), kThreads, 0, stream, g, draw, strength);
}

}  // namespace lumigrad::density
