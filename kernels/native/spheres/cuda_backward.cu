// The backward pass on the device: what the scene looks like from the camera is worked out again, then differentiated.
#include "common/launch.h"
#include "spheres/cuda_rows.cuh"

namespace lumigrad::spheres {

DeviceTimer cuda_backward(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& upstream,
                          const Gradients& gradients, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  CudaBuffers buffers;
  const CudaPrepared prepared = cuda_prepare(camera, settings, scene, workspace, stream, buffers, timer);
  const auto n = static_cast<std::size_t>(scene.count);
  const int width = cuda_row_width(scene.channels);
  DeviceBuffer<float> rows(n * static_cast<std::size_t>(width), stream);
  // The last block of 8 channels is added up as a whole.
  DeviceBuffer<double> sums(kBackgroundColor + static_cast<std::size_t>(scene.channels) + kCudaRow, stream);
  const auto clear = [&](void* data, std::size_t bytes) {
    if (bytes > 0) check(cudaMemsetAsync(data, 0, bytes, stream), "clearing sums");
  };
  clear(rows.data(), rows.bytes());
  clear(sums.data(), sums.bytes());
  clear(gradients.touched, n * sizeof(*gradients.touched));
  const CudaRows to{width, rows.data(), gradients.touched, sums.data()};
  if (settings.exact) {
    cuda_exact_pairs(camera, settings, scene, upstream, prepared, to, stream);
  } else {
    cuda_compat_pairs(camera, settings, scene, upstream, prepared, to, gradients.camera != nullptr, stream);
  }
  timer.mark("blend");
  cuda_finish(camera, settings, scene, prepared, to, gradients, stream);
  timer.mark("finish");
  return timer;
}

}  // namespace lumigrad::spheres
