// The surface in a depth image: its normals, their gradients, and their consistency with the normals of surfels.
#include <cmath>

#include "common/math/number.h"
#include "training/cpu/parts.h"

LG_BEGIN_ENGINE(training)
namespace {

constexpr float kLeastLength = 1e-12f;
constexpr int kSteps = 6;  // Gradients of a pixel's two differences.

struct Vector {
  float x, y, z;
  Vector operator-(const Vector& o) const { return {x - o.x, y - o.y, z - o.z}; }
  Vector operator+(const Vector& o) const { return {x + o.x, y + o.y, z + o.z}; }
  Vector operator*(float s) const { return {x * s, y * s, z * s}; }
};

float dot(const Vector& a, const Vector& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
Vector cross(const Vector& a, const Vector& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

float across(const Surface& s, int x) { return (static_cast<float>(x) + 0.5f - s.cx) / s.fx; }
float down(const Surface& s, int y) { return (static_cast<float>(y) + 0.5f - s.cy) / s.fy; }

// The point at a pixel, in the camera's frame.
Vector point(const Surface& s, int x, int y) {
  const float depth = s.depth[int64_t{y} * s.width + x];
  return {depth * across(s, x), depth * down(s, y), depth};
}

// The differences of the points around a pixel, vertically and horizontally, and their normal.
struct Corner {
  Corner(const Surface& s, int x, int y)
      : above(point(s, x, y + 1) - point(s, x, y - 1)),
        left(point(s, x + 1, y) - point(s, x - 1, y)),
        product(cross(above, left)),
        length(std::sqrt(dot(product, product))),
        scale(1.0f / std::max(length, kLeastLength)),
        normal(product * scale) {}
  const Vector above, left, product;
  const float length, scale;
  const Vector normal;
};

bool is_inside(const Surface& s, int x, int y) { return x > 0 && y > 0 && x + 1 < s.width && y + 1 < s.height; }

// Computes the gradients of a pixel's differences, given the gradient of its normal in the world; adds to the sums of
// the rotation.
void differentiate(const Surface& s, int x, int y, const float* given, float* to, double* sums) {
  const Corner corner(s, x, y);
  const float n[3] = {corner.normal.x, corner.normal.y, corner.normal.z};
  float turned[3];
  for (int i = 0; i < 3; ++i) {
    const float* row = s.rotation + 3 * i;
    turned[i] = row[0] * given[0] + row[1] * given[1] + row[2] * given[2];
    for (int j = 0; j < 3; ++j) sums[3 * i + j] += static_cast<double>(n[i]) * static_cast<double>(given[j]);
  }
  Vector v{turned[0], turned[1], turned[2]};
  if (corner.length > kLeastLength) v = v - corner.normal * dot(corner.normal, v);
  v = v * corner.scale;
  const Vector above = cross(corner.left, v), left = cross(v, corner.above);
  const float found[kSteps] = {above.x, above.y, above.z, left.x, left.y, left.z};
  std::copy(found, found + kSteps, to);
}

// The gradient of a pixel's depth, from the gradients of the differences around it; adds to the sums of the intrinsics.
float gather(const Surface& s, int x, int y, const float* steps, double* sums) {
  const auto at = [&](int column, int row, int part) {
    if (!is_inside(s, column, row)) return Vector{0.0f, 0.0f, 0.0f};
    const float* from = steps + (int64_t{row} * s.width + column) * kSteps + part;
    return Vector{from[0], from[1], from[2]};
  };
  const Vector v = at(x, y - 1, 0) - at(x, y + 1, 0) + at(x - 1, y, 3) - at(x + 1, y, 3);
  const float u = across(s, x), w = down(s, y), depth = s.depth[int64_t{y} * s.width + x];
  const double of_u = static_cast<double>(v.x * depth) / static_cast<double>(s.fx);
  const double of_w = static_cast<double>(v.y * depth) / static_cast<double>(s.fy);
  sums[0] -= of_u * static_cast<double>(u);
  sums[1] -= of_w * static_cast<double>(w);
  sums[2] -= of_u;
  sums[3] -= of_w;
  return v.x * u + v.y * w + v.z;
}

}  // namespace

void surface_normals(const Surface& s, float* to) {
  for_parts(s.height, [&](int y) {
    for (int x = 0; x < s.width; ++x) {
      float* normal = to + 3 * (int64_t{y} * s.width + x);
      normal[0] = normal[1] = normal[2] = 0.0f;
      if (!is_inside(s, x, y)) continue;
      const Vector n = Corner(s, x, y).normal;
      for (int j = 0; j < 3; ++j) normal[j] = s.rotation[j] * n.x + s.rotation[3 + j] * n.y + s.rotation[6 + j] * n.z;
    }
  });
}

void surface_backward(const Surface& s, const float* gradient, float* to, bool adds, double* sums, Workspace& w) {
  float* steps = w.scratch.ensure<float>(std::size_t{kSteps} * s.width * s.height);
  double* rows = w.sums.ensure<double>(std::size_t{kSurfaceSums} * s.height);
  for_parts(s.height, [&](int y) {
    double* found = rows + std::size_t{kSurfaceSums} * y;
    std::fill(found, found + kSurfaceSums, 0.0);
    for (int x = 0; x < s.width; ++x) {
      const int64_t at = int64_t{y} * s.width + x;
      if (is_inside(s, x, y)) differentiate(s, x, y, gradient + 3 * at, steps + kSteps * at, found);
    }
  });
  for_parts(s.height, [&](int y) {
    for (int x = 0; x < s.width; ++x) {
      const int64_t at = int64_t{y} * s.width + x;
      const float found = gather(s, x, y, steps, rows + std::size_t{kSurfaceSums} * y + 9);
      to[at] = adds ? to[at] + found : found;
    }
  });
  if (sums == nullptr) return;
  std::fill(sums, sums + kSurfaceSums, 0.0);
  for (int y = 0; y < s.height; ++y) {
    for (int k = 0; k < kSurfaceSums; ++k) sums[k] += rows[std::size_t{kSurfaceSums} * y + k];
  }
}

void normal_loss(const NormalLoss& l, double* to, Workspace& w) {
  const double sum = sum_parts(l.pixels, w, [&](int64_t begin, int64_t end) {
    double found = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      const float *normal = l.normals + 3 * i, *surface = l.surface + 3 * i;
      const bool known = surface[0] != 0.0f || surface[1] != 0.0f || surface[2] != 0.0f;
      const float slope = known ? l.slope : 0.0f;
      const float along = normal[0] * surface[0] + normal[1] * surface[1] + normal[2] * surface[2];
      if (known) found += static_cast<double>(l.alpha[i] - along);
      l.d_alpha[i] = l.adds ? l.d_alpha[i] + slope : slope;
      for (int k = 0; k < 3; ++k) {
        l.d_normals[3 * i + k] = -surface[k] * slope;
        l.d_surface[3 * i + k] = -normal[k] * slope;
      }
    }
    return found;
  });
  *to = sum / static_cast<double>(l.pixels);
}

LG_END
