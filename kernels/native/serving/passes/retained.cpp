#include "serving/passes/retained.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

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
    // Infinite, or a NaN, which becomes a quiet one.
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

}  // namespace

RetainedPass::RetainedPass(std::shared_ptr<const RetainedRender> kind_of, const std::vector<CameraPose>& cameras)
    : kind(std::move(kind_of)) {
  for (const CameraPose& camera : cameras) poses.push_back(pose_of(camera));
}

CpuRetained::CpuRetained(std::shared_ptr<const RetainedRender> kind_of, const std::vector<CameraPose>& cameras)
    : RetainedPass(std::move(kind_of), cameras) {
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

void point_gradient(gaussians::Gradients& gradients, const std::string& name, float* to) {
  if (name == "means")
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

std::vector<float> decoded(const Incoming& incoming, const char* payload) {
  std::vector<float> values(incoming.values);
  const char* from = payload + incoming.offset;
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
  for (const Incoming& incoming : kind_->incoming) incoming_.push_back(decoded(incoming, request.data()));
  return true;
}

void BackwardJob::send(const Output& gradient, const float* values) {
  char* to = payload + gradient.offset;
  encode(gradient, values, to);
  nonfinite += count_nonfinite(gradient, to);
}

std::span<const char* const> BackwardJob::stages() const { return kBackwardStages; }

}  // namespace lumigrad::serving
