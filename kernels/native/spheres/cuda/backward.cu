// The backward pass on the device, from the state that the forward pass retained: differentiates the view
// (backward_exact.cu, backward_compat.cu), and computes gradients from the sums.
#include "common/cuda/launch.h"
#include "common/cuda/pair_rows.h"
#include "spheres/cuda/rows.cuh"

namespace lumigrad::spheres {
namespace {

constexpr unsigned kThreads = 256;
// The most blocks that share the spheres; each adds its camera sums once.
constexpr unsigned kMaxBlocks = 1024;

// Writes the sums over the block, in a fixed order.
template <int V>
__device__ void sum_doubles(const double (&values)[V], double* to) {
  __shared__ SharedArray<double, kThreads / kWarp * V> partial;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int i = 0; i < V; ++i) {
    const double total = warp_sum(values[i]);
    if (lane_index() == 0) partial[warp * V + i] = total;
  }
  __syncthreads();
  if (threadIdx.x < V) {
    double sum = 0.0;
    for (int w = 0; w < static_cast<int>(kThreads) / kWarp; ++w) sum += partial[w * V + static_cast<int>(threadIdx.x)];
    to[threadIdx.x] = sum;
  }
}

// Gradients of one sphere; its camera terms are added to `sums`.
template <bool kExact, bool kOrthogonal>
__device__ void finish_sphere(const Camera& camera, const Scene& scene, const CudaPrepared& prepared,
                              const CudaRows& from, const Gradients& to, int64_t i, double* sums,
                              double& contributors) {
  float* row = from.rows + i * from.width;
  const int touched = from.touched[i];
  if constexpr (kExact) {
    if (touched > 0) exact_row<kOrthogonal>(camera, reinterpret_cast<const float*>(prepared.records + 4 * i), row);
  }
  const float scale = kExact ? 1.0f : (touched > 0 ? 1.0f / static_cast<float>(touched) : 0.0f);
  if (to.positions != nullptr) {
    float world[3];
    centre_gradient<kExact, kOrthogonal>(camera, row, world);
    for (int k = 0; k < 3; ++k) to.positions[3 * i + k] = world[k] * scale;
  }
  if (to.radii != nullptr) to.radii[i] = row[3] * scale;
  if (to.opacities != nullptr) to.opacities[i] = row[4] * scale;
  for (int c = 0; to.colors != nullptr && c < scene.channels; ++c) {
    to.colors[i * scene.channels + c] = row[kRowColor + c] * scale;
  }
  if (touched == 0) return;
  const float area = kExact ? 0.0f : prepared.area[i];
  add_camera_terms<kExact, kOrthogonal>(camera, scene.positions + 3 * i, row,
                                        kExact ? 1.0f : camera_weight(area, touched), sums);
  // In Pulsar small spheres count once per pixel (spec 7.2).
  contributors += area > 0.0f ? 1.0 : static_cast<double>(touched);
}

template <bool kExact, bool kOrthogonal>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(Camera camera, Scene scene, CudaPrepared prepared, CudaRows from, Gradients to) {
  constexpr int kTerms = 12;  // add_camera_terms uses no more.
  double sums[kTerms] = {};
  double contributors[1] = {};
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < scene.count; i += gridDim.x * blockDim.x) {
    finish_sphere<kExact, kOrthogonal>(camera, scene, prepared, from, to, i, sums, contributors[0]);
  }
  if (from.parts == nullptr) return;
  sum_doubles(sums, from.part());
  if (!kExact) sum_doubles(contributors, from.part() + kContributors);
}

// A block per sum of the view, which adds up the parts in a fixed order.
__global__ void __launch_bounds__(kThreads) parts_kernel(CudaRows from, int parts, double* sums) {
  const int column = static_cast<int>(blockIdx.x);
  double sum = 0.0;
  for (int p = static_cast<int>(threadIdx.x); p < parts; p += static_cast<int>(kThreads)) {
    sum += from.parts[static_cast<int64_t>(p) * from.part_width + column];
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) sums[column] = sum;
}

// The final operations after all spheres and pixels are summed; one thread.
__global__ void totals_kernel(Camera camera, Settings settings, Scene scene, double* sums, Gradients to) {
  if (settings.exact) {
    // The sums of e dL/de. Those of the pairs are relative to M; their terms in M add up to minus the background's.
    const double range = camera.z_max64 - camera.z_min64;
    sums[17] = (sums[kPairExponent] - sums[kBackgroundMaximum]) / range;
    sums[18] = -(sums[kPairExponent] + sums[kBackgroundExponent]) / settings.gamma64;
  } else {
    compat_camera_totals(camera, sums[kContributors], sums);
  }
  for (int i = 0; to.camera != nullptr && i < kCameraSums; ++i) to.camera[i] = sums[i];
  for (int c = 0; to.background != nullptr && c < scene.channels; ++c) {
    to.background[c] = static_cast<float>(sums[kBackgroundColor + c]);
  }
}

using FinishKernel = void (*)(Camera, Scene, CudaPrepared, CudaRows, Gradients);

FinishKernel choose(bool exact, bool orthogonal) {
  if (exact) return orthogonal ? &finish_kernel<true, true> : &finish_kernel<true, false>;
  return orthogonal ? &finish_kernel<false, true> : &finish_kernel<false, false>;
}

}  // namespace

unsigned cuda_finish_blocks(const Scene& scene) {
  return ::min(blocks_for(static_cast<std::size_t>(scene.count), kThreads), kMaxBlocks);
}

void cuda_finish(const Camera& camera, const Settings& settings, const Scene& scene, const CudaPrepared& prepared,
                 const CudaRows& rows, const Gradients& gradients, cudaStream_t stream) {
  const unsigned tiles = static_cast<unsigned>(prepared.lists.tiles_x * prepared.lists.tiles_y);
  const unsigned blocks = cuda_finish_blocks(scene), parts = tiles + blocks;
  CudaRows own = rows;
  if (rows.parts != nullptr) own.parts += static_cast<std::size_t>(tiles) * rows.part_width;
  launch(choose(settings.exact, camera.orthogonal), blocks, kThreads, 0, stream, camera, scene, prepared, own,
         gradients);
  if (rows.parts == nullptr) return;
  DeviceBuffer<double> sums(static_cast<std::size_t>(rows.part_width), stream);
  launch(parts_kernel, static_cast<unsigned>(rows.part_width), kThreads, 0, stream, rows, static_cast<int>(parts),
         sums.data());
  launch(totals_kernel, 1, 1, 0, stream, camera, settings, scene, sums.data(), gradients);
}

namespace {

template <class T>
void clear(const DeviceBuffer<T>& buffer, cudaStream_t stream) {
  if (buffer.bytes() > 0) check(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), stream), "clearing sums");
}

// Fills the rows of the spheres, and the parts of the tiles.
void sum_pairs(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
               const CudaPrepared& prepared, const CudaRows& to, cudaStream_t stream) {
  if (settings.exact) {
    cuda_exact_pairs(camera, settings, scene, upstream, prepared, to, stream);
  } else {
    cuda_compat_pairs(camera, settings, scene, upstream, prepared, to, stream);
  }
}

// Fills the rows by adding up those of the pairs.
void sum_in_order(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                  const CudaPrepared& prepared, const CudaPass& pass, CudaRows to, cudaStream_t stream) {
  const std::size_t pairs = prepared.lists.pairs;
  const DeviceBuffer<float> pair_rows(pairs * static_cast<std::size_t>(to.width), stream);
  clear(pair_rows, stream);
  to.pair_rows = pair_rows.data();
  sum_pairs(camera, settings, scene, upstream, prepared, to, stream);
  const DeviceBuffer<unsigned> spheres(pairs, stream);
  gather(pass.tiles.order, pass.tiles.entries, spheres, stream);
  sum_pair_rows(spheres.data(), pairs, static_cast<std::size_t>(scene.count), to.width, to.pair_rows, to.rows, stream);
}

}  // namespace

DeviceTimer cuda_backward(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                          const Gradients& gradients, const CudaPass& pass, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaPrepared prepared = prepared_of(camera, settings, pass);
  const auto n = static_cast<std::size_t>(scene.count);
  const int width = cuda_row_width(scene.channels);
  DeviceBuffer<float> rows(n * static_cast<std::size_t>(width), stream);
  const bool wants_background = settings.exact && gradients.background != nullptr;
  const int part_width = cuda_part_width(wants_background ? scene.channels : 0);
  const bool wants_parts = gradients.camera != nullptr || gradients.background != nullptr;
  const std::size_t blocks =
      static_cast<std::size_t>(prepared.lists.tiles_x) * prepared.lists.tiles_y + cuda_finish_blocks(scene);
  const DeviceBuffer<double> parts(wants_parts ? blocks * static_cast<std::size_t>(part_width) : 0, stream);
  clear(parts, stream);
  if (n > 0) check(cudaMemsetAsync(gradients.touched, 0, n * sizeof(*gradients.touched), stream), "clearing counts");
  const CudaRows to{width, rows.data(), nullptr, gradients.touched, wants_parts ? parts.data() : nullptr, part_width};
  if (settings.deterministic) {
    sum_in_order(camera, settings, scene, upstream, prepared, pass, to, stream);
  } else {
    clear(rows, stream);
    sum_pairs(camera, settings, scene, upstream, prepared, to, stream);
  }
  timer.mark("blend");
  cuda_finish(camera, settings, scene, prepared, to, gradients, stream);
  timer.mark("finish");
  return timer;
}

}  // namespace lumigrad::spheres
