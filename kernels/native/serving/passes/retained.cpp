#include "serving/passes/retained.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "serving/passes/camera_gradient.h"

namespace lumigrad::serving {
namespace {

constexpr const char* kBackwardStages[] = {"kernel.blend_backward", "kernel.project_backward"};

[[noreturn]] void refuse(const std::string& name) {
  throw std::invalid_argument("'" + name + "' has no place in a backward pass");
}

float of_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

float of_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16, magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00) {
    // Infinity or NaN; a signalling NaN becomes a quiet one.
    const std::uint32_t quiet = magnitude > 0x7C00 ? 0x400000 : 0;
    return std::bit_cast<float>(sign | 0x7F800000 | quiet | (magnitude & 0x3FF) << 13);
  }
  if (magnitude >= 0x400) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
  const float small = std::ldexp(static_cast<float>(magnitude), -24);
  return sign != 0 ? -small : small;
}

template <class From, class IsNonfinite>
std::size_t count_if(const char* from, std::size_t values, IsNonfinite&& is_nonfinite) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < values; ++i) {
    From bits;
    std::memcpy(&bits, from + i * sizeof(From), sizeof(From));
    count += is_nonfinite(bits);
  }
  return count;
}

// The sum over the views, in their order.
std::vector<float> summed(const float* values, std::size_t each, std::size_t views) {
  std::vector<float> sums(values, values + each);
  for (std::size_t i = each; i < each * views; ++i) sums[i % each] += values[i];
  return sums;
}

}  // namespace

RetainedPass::RetainedPass(std::shared_ptr<const RetainedRender> kind_of, std::vector<CameraPose> cameras_at)
    : kind(std::move(kind_of)), cameras(std::move(cameras_at)) {
  for (const CameraPose& camera : cameras) poses.push_back(pose_of(camera));
}

CpuRetained::CpuRetained(std::shared_ptr<const RetainedRender> kind_of, std::vector<CameraPose> cameras_at)
    : RetainedPass(std::move(kind_of), std::move(cameras_at)) {
  while (images.size() < kind->images.size()) images.push_back(std::make_unique<Buffer>());
}

void point_image(gaussians::Upstream& upstream, const std::string& name, const float* from) {
  if (name == "color")
    upstream.color = from;
  else if (name == "transmittance")
    upstream.transmittance = from;
  else if (name == "depth")
    upstream.depth = from;
  else if (name == "inverse_depth")
    upstream.inverse_depth = from;
  else if (name == "normals")
    upstream.normals = from;
  else if (name == "distortion")
    upstream.distortion = from;
  else
    refuse(name);
}

void point_incoming(gaussians::Upstream& upstream, const std::string& name, const float* from) {
  if (name == "color")
    upstream.d_color = from;
  else if (name == "alpha")
    upstream.d_alpha = from;
  else if (name == "transmittance")
    upstream.d_transmittance = from;
  else if (name == "depth")
    upstream.d_depth = from;
  else if (name == "expected_depth")
    upstream.d_expected_depth = from;
  else if (name == "inverse_depth")
    upstream.d_inverse_depth = from;
  else if (name == "normals")
    upstream.d_normals = from;
  else if (name == "median_depth")
    upstream.d_median_depth = from;
  else if (name == "distortion")
    upstream.d_distortion = from;
  else if (name == "means2d")
    upstream.d_means2d = from;
  else
    refuse(name);
}

void point_image(spheres::Upstream& upstream, const std::string& name, const void* from) {
  const float* values = static_cast<const float*>(from);
  const std::int32_t* integers = static_cast<const std::int32_t*>(from);
  if (name == "color")
    upstream.color = values;
  else if (name == "info")
    upstream.info = values;
  else if (name == "blend")
    upstream.blend = values;
  else if (name == "stop")
    upstream.stop = integers;
  else if (name == "sphere_ids")
    upstream.ids = integers;
  else
    refuse(name);
}

void point_incoming(spheres::Upstream& upstream, const std::string& name, const float* from) {
  if (name == "color")
    upstream.d_color = from;
  else if (name == "alpha")
    upstream.d_alpha = from;
  else if (name == "depth")
    upstream.d_depth = from;
  else
    refuse(name);
}

void point_gradient(spheres::Gradients& gradients, const std::string& name, float* to) {
  if (name == "positions")
    gradients.positions = to;
  else if (name == "colors")
    gradients.colors = to;
  else if (name == "radii")
    gradients.radii = to;
  else if (name == "opacities")
    gradients.opacities = to;
  else if (name == "background")
    gradients.background = to;
  else
    refuse(name);
}

bool BackwardKind::has_cameras() const {
  return std::any_of(gradients.begin(), gradients.end(), [](const Output& g) { return camera_values(g.name) > 0; });
}

std::vector<std::pair<std::string, std::size_t>> BackwardKind::results() const {
  std::vector<std::pair<std::string, std::size_t>> found;
  if (has_cameras()) {
    found = {{"poses", views * gaussians::kPoseSums * sizeof(double)}, {"intrinsics", views * 4 * sizeof(double)}};
  }
  for (const Output& gradient : gradients) {
    if (camera_values(gradient.name) > 0) continue;
    const std::size_t each = gradient.name == "background" ? views : 1;
    found.emplace_back(gradient.name, each * gradient.values * sizeof(float));
  }
  return found;
}

void point_gradient(gaussians::Gradients& gradients, const std::string& name, void* result) {
  float* to = static_cast<float*>(result);
  if (name == "poses")
    gradients.poses = static_cast<double*>(result);
  else if (name == "intrinsics")
    gradients.intrinsics = static_cast<double*>(result);
  else if (name == "means")
    gradients.means = to;
  else if (name == "quats")
    gradients.quats = to;
  else if (name == "scales")
    gradients.scales = to;
  else if (name == "covariances")
    gradients.covariances = to;
  else if (name == "opacities")
    gradients.opacities = to;
  else if (name == "sh")
    gradients.sh = to;
  else if (name == "colors")
    gradients.colors = to;
  else if (name == "background")
    gradients.background = to;
  else if (name == "means2d")
    gradients.means2d = to;
  else if (name == "means2d_abs")
    gradients.means2d_abs = to;
  else
    refuse(name);
}

std::size_t bytes_of(const Incoming& incoming) {
  return incoming.values * (incoming.encoding == Encoding::plain ? sizeof(float) : sizeof(std::uint16_t));
}

std::vector<float> decoded(const Incoming& incoming, const char* from) {
  std::vector<float> values(incoming.values);
  if (incoming.encoding == Encoding::plain) {
    std::memcpy(values.data(), from, values.size() * sizeof(float));
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    values[i] = incoming.encoding == Encoding::float16 ? of_float16(bits) : of_bfloat16(bits);
  }
  return values;
}

std::size_t count_nonfinite(const Output& output, const char* from) {
  if (output.encoding == Encoding::plain) {
    return count_if<std::uint32_t>(from, output.values, [](std::uint32_t b) { return (b & 0x7F800000) == 0x7F800000; });
  }
  const std::uint16_t exponent = output.encoding == Encoding::float16 ? 0x7C00 : 0x7F80;
  return count_if<std::uint16_t>(from, output.values,
                                 [exponent](std::uint16_t b) { return (b & exponent) == exponent; });
}

bool BackwardJob::accept(std::string_view request) {
  for (std::size_t i = 0; i < kind_->incoming.size(); ++i) {
    const Incoming& incoming = kind_->incoming[i];
    const auto found = outside.find(i);
    incoming_.push_back(decoded(incoming, found == outside.end() ? request.data() + incoming.offset : found->second));
  }
  return true;
}

void BackwardJob::send_all(const std::vector<const void*>& results, const std::vector<CameraPose>& cameras) {
  std::map<std::string, std::vector<float>, std::less<>> of_cameras;
  auto next = results.begin();
  if (kind_->has_cameras()) {
    of_cameras = camera_gradients(static_cast<const double*>(next[0]), static_cast<const double*>(next[1]), cameras);
    next += 2;
  }
  for (const Output& gradient : kind_->gradients) {
    if (const auto found = of_cameras.find(gradient.name); found != of_cameras.end()) {
      send(gradient, found->second.data());
      continue;
    }
    const float* values = static_cast<const float*>(*next++);
    if (gradient.name == "background") {
      send(gradient, summed(values, gradient.values, kind_->views).data());
    } else {
      send(gradient, values);
    }
  }
}

void BackwardJob::send(const Output& gradient, const float* values) {
  char* to = payload + gradient.offset;
  encode(gradient, values, to);
  nonfinite += count_nonfinite(gradient, to);
}

std::span<const char* const> BackwardJob::stages() const { return kBackwardStages; }

}  // namespace lumigrad::serving
