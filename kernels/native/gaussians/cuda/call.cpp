#include "gaussians/cuda/call.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "common/cuda/launch.h"

namespace lumigrad::gaussians {
namespace {

constexpr std::size_t kAlignment = 16;

// The arrays of a call, packed into one block of bytes.
class Packed {
 public:
  // Appends an array; returns its offset in bytes.
  template <class T>
  std::size_t add(const T* from, std::size_t count) {
    const std::size_t begin = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(begin + count * sizeof(T));
    if (count > 0) std::memcpy(bytes_.data() + begin, static_cast<const void*>(from), count * sizeof(T));
    return begin;
  }
  template <class T>
  std::size_t add(const std::vector<T>& from) {
    return add(from.data(), from.size());
  }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
};

// The number of blocks before each slice.
std::vector<int32_t> blocks_before(const Scene& scene) {
  std::vector<int32_t> blocks(1, 0);
  for (int g = 0; g < scene.slices; ++g) {
    const auto length = static_cast<unsigned>(scene.slice_begins[g + 1] - scene.slice_begins[g]);
    blocks.push_back(blocks.back() + static_cast<int32_t>((length + kGaussianThreads - 1) / kGaussianThreads));
  }
  return blocks;
}

// The motions of the moving slices, view after view.
std::vector<SliceMotion<float>> slice_motions(const Scene& scene, int views) {
  std::vector<SliceMotion<float>> motions;
  for (int v = 0; scene.sensors != nullptr && v < views; ++v) {
    for (int g = 0; g < scene.slices; ++g) {
      const SlicePose& slice = scene.slice_poses[g];
      if (slice.moving >= 0) motions.push_back(ray_slice_motion(scene.sensors[v], slice));
    }
  }
  return motions;
}

}  // namespace

CudaCallData::CudaCallData(const View* views, int count, const Settings& settings, const Scene& scene,
                           CudaWorkspace& workspace, cudaStream_t stream) {
  std::vector<int32_t> lenses, starts(static_cast<std::size_t>(scene.scenes) + 1, 0), by_scene(count);
  for (int v = 0; v < count; ++v) {
    lenses.push_back(static_cast<int32_t>(lens_of(views[v])));
    if (scene.sensors == nullptr) {
      lenses_ |= 1u << lenses.back();
    } else {
      sensor_lenses_ |= 1u << static_cast<int>(scene.sensors[v].lens);
    }
    ++starts[views[v].scene + 1];
  }
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<int32_t> next = starts;
  for (int v = 0; v < count; ++v) by_scene[next[views[v].scene]++] = v;
  const std::vector<int32_t> blocks = blocks_before(scene);
  Packed packed;
  const std::size_t at_views = packed.add(views, static_cast<std::size_t>(count));
  const std::size_t at_poses = packed.add(scene.poses, static_cast<std::size_t>(count) * scene.slices);
  const std::size_t at_begins = packed.add(scene.slice_begins, static_cast<std::size_t>(scene.slices) + 1);
  const std::size_t at_lenses = packed.add(lenses), at_starts = packed.add(starts);
  const std::size_t at_scene_views = packed.add(by_scene), at_blocks = packed.add(blocks);
  const std::size_t sensors = scene.sensors != nullptr ? static_cast<std::size_t>(count) : 0;
  const std::size_t at_sensors = packed.add(scene.sensors, sensors);
  const std::size_t at_slice_poses = packed.add(scene.slice_poses, static_cast<std::size_t>(scene.slices));
  const std::size_t at_motions = packed.add(slice_motions(scene, count));
  data_ = DeviceBuffer<unsigned char>(packed.bytes().size(), stream);
  workspace.staging.copy(data_.data(), packed.bytes().data(), packed.bytes().size(), stream);
  const auto replace = [&](std::size_t at, const void* from, std::size_t bytes) {
    check(cudaMemcpyAsync(data_.data() + at, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying cameras");
  };
  if (workspace.poses != nullptr) replace(at_poses, workspace.poses, sizeof(Pose) * static_cast<std::size_t>(count));
  for (std::size_t v = 0; v < static_cast<std::size_t>(count); ++v) {
    if (workspace.films != nullptr) {
      replace(at_views + v * sizeof(View) + offsetof(View, fx), workspace.films + v, sizeof(Film));
    }
    if (workspace.sensors != nullptr) {
      replace(at_sensors + v * sizeof(Sensor) + offsetof(Sensor, rotation), workspace.sensors + v, sizeof(SensorPose));
    }
  }
  const auto ints = [&](std::size_t at) { return reinterpret_cast<const int32_t*>(data_.data() + at); };
  call_.settings = settings;
  call_.scene = scene;
  call_.scene.poses = reinterpret_cast<const Pose*>(data_.data() + at_poses);
  call_.scene.slice_begins = ints(at_begins);
  if (sensors > 0) call_.scene.sensors = reinterpret_cast<const Sensor*>(data_.data() + at_sensors);
  call_.scene.slice_poses = reinterpret_cast<const SlicePose*>(data_.data() + at_slice_poses);
  call_.views = count;
  call_.width = views[0].width;
  call_.height = views[0].height;
  call_.view = reinterpret_cast<const View*>(data_.data() + at_views);
  call_.lenses = ints(at_lenses);
  call_.scene_starts = ints(at_starts);
  call_.scene_views = ints(at_scene_views);
  call_.slice_blocks = ints(at_blocks);
  call_.blocks = blocks.back();
  call_.motions = reinterpret_cast<const SliceMotion<float>*>(data_.data() + at_motions);
}

}  // namespace lumigrad::gaussians
