// The backward pass on the device, from the state that the forward pass retained: differentiates the view
// (backward_exact.cu, backward_compat.cu), and computes gradients from the sums.
#include <algorithm>

#include "common/cuda/launch.h"
#include "common/cuda/pair_rows.h"
#include "spheres/cuda/rows.cuh"

namespace lumigrad::spheres {
namespace {

constexpr unsigned kThreads = 256;
// The maximum number of blocks that share the spheres; each writes its camera sums once.
constexpr unsigned kMaxBlocks = 1024;

// Sums values over the block in a fixed order, and writes the sums.
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

// Converts the row of one sphere and view to gradients, and adds its camera terms to `sums`.
template <bool kExact, bool kOrthogonal>
__device__ void finish_sphere(const DifferentiatedView& view, const Scene& scene, int64_t i, double* sums,
                              double& contributors) {
  const int touched = view.rows.touched[i];
  if (touched == 0) return;
  float* row = view.rows.rows + i * view.rows.width;
  if constexpr (kExact) {
    exact_row<kOrthogonal>(view.camera, reinterpret_cast<const float*>(view.prepared.records + 4 * i), row);
  }
  const float area = kExact ? 0.0f : view.prepared.area[i];
  add_camera_terms<kExact, kOrthogonal>(view.camera, scene.positions + 3 * i, row,
                                        kExact ? 1.0f : camera_weight(area, touched), sums);
  // Small spheres count once per pixel in Pulsar (spec 7.2).
  contributors += area > 0.0f ? 1.0 : static_cast<double>(touched);
  float world[3];
  centre_gradient<kExact, kOrthogonal>(view.camera, row, world);
  for (int k = 0; k < 3; ++k) row[k] = world[k];
  const float scale = 1.0f / static_cast<float>(touched);
  for (int k = 0; !kExact && k < view.rows.width; ++k) row[k] *= scale;
}

// The blocks of each view share its spheres.
template <bool kExact, bool kOrthogonal>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(Scene scene, unsigned tiles, const DifferentiatedView* views) {
  __shared__ DifferentiatedView view;
  load_view(view, views[blockIdx.y]);
  if ((view.camera.orthogonal != 0) != kOrthogonal) return;
  constexpr int kTerms = 12;  // add_camera_terms uses no more.
  double sums[kTerms] = {};
  double contributors[1] = {};
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < scene.count; i += gridDim.x * blockDim.x) {
    finish_sphere<kExact, kOrthogonal>(view, scene, i, sums, contributors[0]);
  }
  if (view.rows.parts == nullptr) return;
  double* part = view.rows.part(tiles + blockIdx.y * gridDim.x + blockIdx.x);
  sum_doubles(sums, part);
  if (!kExact) sum_doubles(contributors, part + kContributors);
}

// Sums the gradients of the views, with a thread per sphere.
__global__ void __launch_bounds__(kThreads) gradients_kernel(Scene scene, int views, CudaRows from, Gradients to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, count = scene.count;
  if (i >= count) return;
  int touched = 0;
  for (int v = 0; v < views; ++v) touched += from.touched[v * count + i];
  to.touched[i] = touched;
  const auto sum = [&](int column) {
    float total = 0.0f;
    for (int v = 0; v < views; ++v) total += from.rows[(v * count + i) * from.width + column];
    return total;
  };
  for (int k = 0; to.positions != nullptr && k < 3; ++k) to.positions[3 * i + k] = sum(k);
  if (to.radii != nullptr) to.radii[i] = sum(3);
  if (to.opacities != nullptr) to.opacities[i] = sum(4);
  for (int c = 0; to.colors != nullptr && c < scene.channels; ++c) {
    to.colors[i * scene.channels + c] = sum(kRowColor + c);
  }
}

// Sums the parts in a fixed order, with a block per sum and view. The parts are `tiles` per view for all views,
// followed by `blocks` per view.
__global__ void __launch_bounds__(kThreads) parts_kernel(CudaRows from, unsigned tiles, unsigned blocks, double* sums) {
  const unsigned column = blockIdx.x, view = blockIdx.y, views = gridDim.y;
  double sum = 0.0;
  for (unsigned p = threadIdx.x; p < tiles + blocks; p += kThreads) {
    sum += from.part(p < tiles ? view * tiles + p : views * tiles + view * blocks + (p - tiles))[column];
  }
  sum = block_total<kThreads>(sum);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(view) * from.part_width + column] = sum;
}

// The final operations after all spheres and pixels of a view are summed, with a block per view.
__global__ void totals_kernel(Settings settings, const DifferentiatedView* views, double* all, double* to) {
  const DifferentiatedView& view = views[blockIdx.x];
  double* sums = all + static_cast<int64_t>(blockIdx.x) * view.rows.part_width;
  if (settings.exact) {
    // The sum of e dL/de. The pairs' sum is relative to M; their terms in M add up to minus the background's.
    const double range = view.camera.z_max64 - view.camera.z_min64;
    sums[17] = (sums[kPairExponent] - sums[kBackgroundMaximum]) / range;
    sums[18] = -(sums[kPairExponent] + sums[kBackgroundExponent]) / settings.gamma64;
  } else {
    compat_camera_totals(view.camera, sums[kContributors], sums);
  }
  for (int i = 0; i < kCameraSums; ++i) to[static_cast<int64_t>(blockIdx.x) * kCameraSums + i] = sums[i];
}

// Sums the views, with a thread per channel.
__global__ void background_kernel(int channels, int views, int part_width, const double* sums, float* background) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= channels) return;
  double sum = 0.0;
  for (int v = 0; v < views; ++v) sum += sums[static_cast<int64_t>(v) * part_width + kBackgroundColor + c];
  background[c] = static_cast<float>(sum);
}

using FinishKernel = void (*)(Scene, unsigned, const DifferentiatedView*);

FinishKernel choose(bool exact, bool orthogonal) {
  if (exact) return orthogonal ? &finish_kernel<true, true> : &finish_kernel<true, false>;
  return orthogonal ? &finish_kernel<false, true> : &finish_kernel<false, false>;
}

unsigned finish_blocks(const Scene& scene) {
  return std::min(blocks_for(static_cast<std::size_t>(scene.count), kThreads), kMaxBlocks);
}

// Computes gradients from the rows and parts of all views.
void finish(const BackwardCall& call, const CudaRows& rows, const Gradients& to, cudaStream_t stream) {
  const auto views = static_cast<unsigned>(call.cameras.size());
  const unsigned tiles = tiles_of(call.pass.lists), blocks = finish_blocks(call.scene);
  each_projection(call.cameras, [&](bool orthogonal) {
    launch(choose(call.settings.exact, orthogonal), dim3(blocks, views), kThreads, 0, stream, call.scene, tiles,
           call.views);
  });
  launch(gradients_kernel, blocks_for(static_cast<std::size_t>(call.scene.count), kThreads), kThreads, 0, stream,
         call.scene, static_cast<int>(views), rows, to);
  if (rows.parts == nullptr) return;
  const DeviceBuffer<double> sums(std::size_t{views} * rows.part_width, stream);
  launch(parts_kernel, dim3(static_cast<unsigned>(rows.part_width), views), kThreads, 0, stream, rows, tiles / views,
         blocks, sums.data());
  if (to.background != nullptr) {
    launch(background_kernel, blocks_for(static_cast<std::size_t>(call.scene.channels), kThreads), kThreads, 0, stream,
           call.scene.channels, static_cast<int>(views), rows.part_width, sums.data(), to.background);
  }
  if (to.camera != nullptr) {
    launch(totals_kernel, views, 1, 0, stream, call.settings, call.views, sums.data(), to.camera);
  }
}

template <class T>
void clear(const DeviceBuffer<T>& buffer, cudaStream_t stream) {
  if (buffer.bytes() > 0) check(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), stream), "clearing sums");
}

std::vector<DifferentiatedView> views_of(const std::vector<Camera>& cameras, const Settings& settings,
                                         const Scene& scene, const CudaPass& pass, const Upstream& up,
                                         const CudaRows& rows, const unsigned* ranks) {
  const std::vector<CudaPrepared> prepared = prepared_of(cameras, settings, scene, pass);
  std::vector<DifferentiatedView> views;
  for (std::size_t v = 0; v < cameras.size(); ++v) {
    const auto part = [&](const auto* image, int values) { return of_view(image, cameras[v], v, values); };
    const std::size_t first = v * scene.count;
    CudaRows own = rows;
    own.rows += first * rows.width;
    own.touched += first;
    const Upstream upstream{part(up.color, scene.channels),
                            part(up.info, 3 + 2 * settings.n_track),
                            part(up.blend, 3),
                            part(up.stop, 1),
                            part(up.ids, settings.n_track),
                            part(up.d_color, scene.channels),
                            part(up.d_alpha, 1),
                            part(up.d_depth, 1)};
    views.push_back({cameras[v], prepared[v], upstream, own, ranks + first});
  }
  return views;
}

// Fills the rows of the spheres, and the parts of the tiles.
void sum_pairs(const BackwardCall& call, const CudaRows& rows, std::size_t items, cudaStream_t stream) {
  if (call.settings.exact) {
    cuda_exact_pairs(call, stream);
  } else {
    cuda_compat_pairs(call, stream);
  }
  if (!call.settings.deterministic) return;
  const TileBuffers& tiles = call.pass.tiles;
  const DeviceBuffer<unsigned> of_pairs(tiles.entries.size(), stream);
  gather(tiles.order, tiles.entries, of_pairs, stream);
  sum_pair_rows(of_pairs.data(), of_pairs.size(), items, rows.width, rows.pair_rows, rows.rows, stream);
}

}  // namespace

DeviceTimer cuda_backward(const std::vector<Camera>& cameras, const Settings& settings, const Scene& scene,
                          const Upstream& upstream, const Gradients& gradients, const CudaPass& pass,
                          CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const std::size_t items = cameras.size() * scene.count, pairs = settings.deterministic ? pass.lists.pairs : 0;
  const auto width = static_cast<std::size_t>(cuda_row_width(scene.channels));
  const DeviceBuffer<float> all_rows(items * width, stream), pair_rows(pairs * width, stream);
  const DeviceBuffer<int> touched(items, stream);
  const int part_width = cuda_part_width(settings.exact && gradients.background != nullptr ? scene.channels : 0);
  const bool wants_parts = gradients.camera != nullptr || gradients.background != nullptr;
  const std::size_t blocks = tiles_of(pass.lists) + cameras.size() * finish_blocks(scene);
  const DeviceBuffer<double> parts(wants_parts ? blocks * static_cast<std::size_t>(part_width) : 0, stream);
  const DeviceBuffer<unsigned> ranks(settings.exact ? 0 : items, stream);
  clear(all_rows, stream);
  clear(pair_rows, stream);
  clear(touched, stream);
  clear(parts, stream);
  if (!settings.exact) cuda_ranks(pass.tiles.order, ranks.data(), stream);
  const CudaRows rows{static_cast<int>(width),
                      all_rows.data(),
                      settings.deterministic ? pair_rows.data() : nullptr,
                      touched.data(),
                      wants_parts ? parts.data() : nullptr,
                      part_width};
  const DeviceBuffer<DifferentiatedView> views =
      uploaded(views_of(cameras, settings, scene, pass, upstream, rows, ranks.data()), workspace, stream);
  sum_pairs({cameras, settings, scene, pass, views.data()}, rows, items, stream);
  timer.mark("blend");
  finish({cameras, settings, scene, pass, views.data()}, rows, gradients, stream);
  timer.mark("finish");
  return timer;
}

}  // namespace lumigrad::spheres
