#include "serving/render.h"

#include <cstring>
#include <stdexcept>

#include "serving/encoding.h"

namespace lumigrad::serving {
namespace {

std::size_t value_bytes(Encoding encoding) {
  switch (encoding) {
    case Encoding::levels:
      return 1;
    case Encoding::float16:
    case Encoding::bfloat16:
      return 2;
    case Encoding::plain:
      break;
  }
  return 4;
}

template <class To, class Convert>
void convert(const float* from, std::size_t count, char* to, Convert&& value_of) {
  // Places in a payload may have any alignment.
  for (std::size_t i = 0; i < count; ++i) {
    const To value = value_of(from[i]);
    std::memcpy(to + i * sizeof(To), &value, sizeof(To));
  }
}

}  // namespace

std::size_t Output::bytes() const { return values * value_bytes(encoding); }

void encode(const Output& output, const void* from, char* to) {
  const float* values = static_cast<const float*>(from);
  switch (output.encoding) {
    case Encoding::plain:
      std::memcpy(to, from, output.bytes());
      return;
    case Encoding::levels:
      convert<std::uint8_t>(values, output.values, to, level_of);
      return;
    case Encoding::float16:
      convert<std::uint16_t>(values, output.values, to, float16_of);
      return;
    case Encoding::bfloat16:
      convert<std::uint16_t>(values, output.values, to, bfloat16_of);
      return;
  }
}

// Adding 0 turns -0 into 0, as a product with the identity does, the pose of a resting slice.
gaussians::Pose pose_of(const CameraPose& camera) {
  gaussians::Pose pose;
  const auto& r = camera.rotation;
  const auto& t = camera.translation;
  for (int i = 0; i < 9; ++i) pose.rotation[i] = static_cast<float>(r[i] + 0.0);
  for (int i = 0; i < 3; ++i) {
    pose.translation[i] = static_cast<float>(t[i] + 0.0);
    pose.eye[i] = static_cast<float>(0.0 - (r[i] * t[0] + r[3 + i] * t[1] + r[6 + i] * t[2]));
  }
  return pose;
}

void point(gaussians::Outputs& outputs, const std::string& name, void* to) {
  float* values = static_cast<float*>(to);
  std::int32_t* integers = static_cast<std::int32_t*>(to);
  if (name == "color")
    outputs.color = values;
  else if (name == "alpha")
    outputs.alpha = values;
  else if (name == "transmittance")
    outputs.transmittance = values;
  else if (name == "depth")
    outputs.depth = values;
  else if (name == "expected_depth")
    outputs.expected_depth = values;
  else if (name == "inverse_depth")
    outputs.inverse_depth = values;
  else if (name == "normals")
    outputs.normals = values;
  else if (name == "median_depth")
    outputs.median_depth = values;
  else if (name == "distortion")
    outputs.distortion = values;
  else if (name == "contributors")
    outputs.contributors = integers;
  else if (name == "radii")
    outputs.radii = integers;
  else if (name == "means2d")
    outputs.means2d = values;
  else if (name == "depths")
    outputs.depths = values;
  else if (name == "conics")
    outputs.conics = values;
  else if (name == "projected_opacities")
    outputs.projected_opacities = values;
  else
    throw std::invalid_argument("the output '" + name + "' has no kernel");
}

void point(GaussianTargets& targets, const Output& output, void* to) {
  if (output.name == "ids")
    targets.ids = static_cast<std::int32_t*>(to);
  else if (output.are_color_levels())
    targets.images.color_levels = static_cast<std::uint8_t*>(to);
  else
    point(targets.images, output.name, to);
}

void point(spheres::Outputs& outputs, const Output& output, void* to) {
  const std::string& name = output.name;
  float* values = static_cast<float*>(to);
  std::int32_t* integers = static_cast<std::int32_t*>(to);
  if (output.are_color_levels())
    outputs.color_levels = static_cast<std::uint8_t*>(to);
  else if (name == "color")
    outputs.color = values;
  else if (name == "alpha")
    outputs.alpha = values;
  else if (name == "depth")
    outputs.depth = values;
  else if (name == "info")
    outputs.info = values;
  else if (name == "sphere_ids")
    outputs.ids = integers;
  else if (name == "weights")
    outputs.weights = values;
  else if (name == "hits")
    outputs.hits = integers;
  else if (name == "blend")
    outputs.blend = values;
  else if (name == "stop")
    outputs.stop = integers;
  else
    throw std::invalid_argument("the output '" + name + "' has no kernel");
}

gaussians::Scene GaussianRender::scene_at(const std::vector<gaussians::Pose>& poses) const {
  gaussians::Scene placed = scene;
  placed.slices = 1;
  placed.slice_begins = slice_begins.data();
  placed.slice_poses = &slice_pose;
  placed.poses = poses.data();
  return placed;
}

const RenderStages& GaussianRender::stages() const {
  static constexpr RenderStages kStages{"kernel.project", "kernel.sort", "kernel.bin", "kernel.blend"};
  return kStages;
}

std::int64_t GaussianRender::work() const {
  std::int64_t work = 0;
  for (const gaussians::View& view : views) work += static_cast<std::int64_t>(view.width) * view.height + scene.count;
  return work;
}

const RenderStages& SphereRender::stages() const {
  static constexpr RenderStages kStages{"kernel.setup", "kernel.sort", "kernel.bin", "kernel.blend"};
  return kStages;
}

std::int64_t SphereRender::work() const {
  std::int64_t work = 0;
  for (const spheres::OpenCVLens& lens : lenses) {
    work += static_cast<std::int64_t>(lens.width) * lens.height + scene.count;
  }
  return work;
}

bool SphereRender::takes(const std::vector<CameraPose>& poses) const {
  for (const CameraPose& pose : poses) {
    if (!spheres::is_rotation(pose.rotation)) return false;
  }
  return poses.size() == lenses.size();
}

spheres::Camera SphereRender::camera(int view, const CameraPose& pose) const {
  return spheres::opencv_camera(lenses[view], pose.rotation, pose.translation, range);
}

bool Render::is_small() const { return work() <= 1 << 14; }

std::size_t Render::output_bytes() const {
  std::size_t bytes = 0;
  for (const Output& output : outputs) bytes += output.bytes();
  return bytes;
}

void Render::clear_gaps(char* payload) const {
  std::size_t end = 0;
  for (const Output& output : outputs) {
    std::memset(payload + end, 0, output.offset - end);
    end = output.offset + output.bytes();
  }
}

}  // namespace lumigrad::serving
