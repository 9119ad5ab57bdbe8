// The forward pass on the device.
#include <string>

#include "common/launch.h"
#include "gaussians/cuda_stages.h"

namespace lumigrad::gaussians {
namespace {

// Items and tiles are numbered in 32 bits.
void check_size(std::size_t items, std::size_t tiles) {
  constexpr std::size_t kMost = 0x7FFFFFFF;
  if (items <= kMost && tiles <= kMost) return;
  throw DeviceMemoryError("views times Gaussians and tiles of all views must stay below 2^31, but there are " +
                          std::to_string(items) + " and " + std::to_string(tiles) + "; render fewer views at a time");
}

}  // namespace

DeviceTimer cuda_forward(const View* views, int count, const Settings& settings, const Scene& scene,
                         const Outputs& outputs, CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaCallData data(views, count, settings, scene, workspace.staging, stream);
  const CudaCall& call = data.call();
  const auto items = static_cast<std::size_t>(count) * scene.count;
  pass.lists = tile_grid(count, call.width, call.height);
  check_size(items, static_cast<std::size_t>(count) * pass.lists.tiles_x * pass.lists.tiles_y);
  pass.features = features_of(scene, outputs);
  const auto stride = static_cast<std::size_t>(feature_stride(pass.features));
  pass.records = DeviceBuffer<float4>(items * kRecordQuarters, stream);
  pass.more_features = DeviceBuffer<float>(items * stride, stream);
  pass.lasts = DeviceBuffer<int>(static_cast<std::size_t>(count) * call.width * call.height, stream);
  const CudaRecords records{pass.features, static_cast<int>(stride), pass.records.data(), pass.more_features.data()};
  DeviceBuffer<unsigned> keys(items, stream);
  cuda_project(data, records, outputs, keys.data(), stream);
  cuda_colors(call, records, stream);
  timer.mark("project");
  sort_by_depth(keys, scene.count, pass.lists, pass.tiles, stream);
  timer.mark("sort");
  cuda_bin(call, records, pass, workspace.pairs, stream);
  timer.mark("bin");
  cuda_draw(call, records, pass.lists, outputs, pass.lasts.data(), stream);
  timer.mark("blend");
  return timer;
}

}  // namespace lumigrad::gaussians
