#include "serving/passes/distance.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

namespace lumigrad::serving {
namespace {

void scale(float* values, std::size_t count, float factor) {
  if (factor == 1.0f) return;
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

// Gradient of the sum of all costs from the jacobians of all rows, summed in the Python package's order.
std::vector<float> gradient_of(const DistanceQuery& query, const float* jacobian) {
  constexpr int kOwn[] = {3, 4, 5, 9};
  const std::size_t rows = query.rows(), count = query.count, horizon = query.horizon;
  const float weight = query.weight;
  std::vector<float> gradient(4 * rows);
  for (std::size_t i = 0; i < rows; ++i) {
    for (int k = 0; k < 4; ++k) gradient[4 * i + k] = jacobian[meshes::kJacobianFloats * i + kOwn[k]];
  }
  scale(gradient.data(), gradient.size(), weight);
  const meshes::Settings& settings = query.settings;
  if (settings.mode != meshes::Mode::exact || !(settings.sweep || settings.speed)) return gradient;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t step = i / count % horizon;
    for (int k = 0; k < 3; ++k) {
      float& value = gradient[4 * i + k];
      if (step + 1 < horizon) value += weight * jacobian[meshes::kJacobianFloats * (i + count) + k];
      if (step > 0) value += weight * jacobian[meshes::kJacobianFloats * (i - count) + 6 + k];
    }
  }
  return gradient;
}

}  // namespace

std::size_t DistanceQuery::bytes(const DistanceOutput& output) const {
  const std::string& name = output.name;
  if (name == "cost" || name == "distance" || name == "face" || name == "instance") return 4 * rows();
  if (name == "normal" || name == "closest") return 12 * rows();
  if (name == "gradient") return 16 * rows();
  if (name == "beyond" || name == "exhausted") return rows();
  throw std::invalid_argument("'" + name + "' is no output of a query");
}

std::size_t DistanceQuery::kernel_bytes(const DistanceOutput& output) const {
  return output.name == "gradient" ? meshes::kJacobianFloats * sizeof(float) * rows() : bytes(output);
}

void DistanceQuery::send(const DistanceOutput& output, char* found, char* payload) const {
  float* values = reinterpret_cast<float*>(found);
  if (output.name == "gradient") {
    const std::vector<float> gradient = gradient_of(*this, values);
    std::memcpy(payload + output.offset, gradient.data(), bytes(output));
    return;
  }
  if (output.name == "cost") scale(values, rows(), weight);
  std::memcpy(payload + output.offset, found, bytes(output));
}

void point(meshes::Outputs& outputs, const DistanceOutput& output, void* to) {
  const std::string& name = output.name;
  if (name == "cost") outputs.cost = static_cast<float*>(to);
  if (name == "gradient") outputs.jacobian = static_cast<float*>(to);
  if (name == "exhausted") outputs.exhausted = static_cast<std::uint8_t*>(to);
  if (name == "distance") outputs.distance = static_cast<float*>(to);
  if (name == "normal") outputs.normal = static_cast<float*>(to);
  if (name == "closest") outputs.closest = static_cast<float*>(to);
  if (name == "face") outputs.face = static_cast<std::int32_t*>(to);
  if (name == "instance") outputs.obstacle = static_cast<std::int32_t*>(to);
  if (name == "beyond") outputs.beyond = static_cast<std::uint8_t*>(to);
}

bool DistanceJob::accept(std::string_view request) {
  spheres_.resize(4 * query_->rows());
  std::memcpy(spheres_.data(), request.data() + query_->spheres_offset, spheres_.size() * sizeof(float));
  for (const float value : spheres_) {
    if (!(std::fabs(value) <= query_->most_coordinate)) return false;  // Also false for NaN.
  }
  if (!query_->environments_offset) return true;
  environments_.resize(query_->batches);
  std::memcpy(environments_.data(), request.data() + *query_->environments_offset,
              environments_.size() * sizeof(std::int32_t));
  for (const std::int32_t environment : environments_) {
    if (environment < 0 || environment >= query_->world.environments) return false;
  }
  return true;
}

}  // namespace lumigrad::serving
