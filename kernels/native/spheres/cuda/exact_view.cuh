// The exact engine's view on a device. Values that need more than float are pairs of floats, since most GPUs compute
// doubles at a small fraction of the rate.
#pragma once

#include "spheres/math/blend.h"

namespace lumigrad::spheres {

// An unevaluated sum of two floats (Dekker, "A floating-point technique for extending the available precision", 1971),
// `low` at most half a unit of `high`. Operations are off by a few 2^-46 of their operands.
struct FloatPair {
  float high, low;

  static FloatPair of(double value) {
    const auto high = static_cast<float>(value);
    return {high, static_cast<float>(value - static_cast<double>(high))};
  }
};

// a + b for |a| >= |b|.
__device__ inline FloatPair ordered_sum(float a, float b) {
  const float sum = a + b;
  return {sum, b - (sum - a)};
}
// a + b, exactly.
__device__ inline FloatPair exact_sum(float a, float b) {
  const float sum = a + b, other = sum - a;
  return {sum, (a - (sum - other)) + (b - other)};
}
__device__ inline FloatPair operator+(FloatPair a, FloatPair b) {
  const FloatPair sum = exact_sum(a.high, b.high);
  return ordered_sum(sum.high, sum.low + (a.low + b.low));
}
__device__ inline FloatPair operator-(FloatPair a, FloatPair b) { return a + FloatPair{-b.high, -b.low}; }
__device__ inline FloatPair operator*(FloatPair a, FloatPair b) {
  const float product = a.high * b.high, rest = fma(a.high, b.high, -product);
  return ordered_sum(product, fma(a.high, b.low, fma(a.low, b.high, rest)));
}
__device__ inline FloatPair operator/(FloatPair a, FloatPair b) {
  const float quotient = a.high / b.high;
  const FloatPair rest = a - FloatPair{quotient, 0.0f} * b;
  return ordered_sum(quotient, rest.high / b.high);
}

struct CudaExactView : ExactView {
  FloatPair unit_x2, unit_y2, aspect2, centre_x2, centre_y2;
  FloatPair z_max, per_depth;  // 1 / (gamma (z_max - z_min)): decrease of the exponent per depth.

  CudaExactView() = default;
  CudaExactView(const Camera& c, const Settings& s)
      : ExactView(exact_view(c, s)),
        unit_x2(FloatPair::of(unit64_x)),
        unit_y2(FloatPair::of(unit64_y)),
        aspect2(FloatPair::of(aspect64)),
        centre_x2(FloatPair::of(centre64_x)),
        centre_y2(FloatPair::of(centre64_y)),
        z_max(FloatPair::of(c.z_max64)),
        per_depth(FloatPair::of(1.0 / (s.gamma64 * (c.z_max64 - c.z_min64)))) {}
};

// The outline, as exact_outline of an ExactView computes it in double.
template <bool kOrthogonal>
__device__ inline ExactOutline exact_outline(const float* rec, const CudaExactView& view, float x, float y,
                                             float excess) {
  using namespace exact_record;
  const FloatPair dx = exact_sum(x - rec[kXHigh], -rec[kXLow]);
  const FloatPair dy = exact_sum(y - rec[kYHigh], -rec[kYLow]) * view.aspect2;
  FloatPair square = dx * dx + dy * dy;
  if constexpr (!kOrthogonal) {
    const FloatPair u = (FloatPair{x, 0.0f} - view.centre_x2) * view.unit_x2;
    const FloatPair v = (FloatPair{y, 0.0f} - view.centre_y2) * view.unit_y2;
    const FloatPair twist = u * dy - v * dx;
    square = (square + twist * twist) / (FloatPair{1.0f, 0.0f} + (u * u + v * v));
  }
  const FloatPair across2 = square * FloatPair{rec[kScale], rec[kScaleLow]};
  const FloatPair chord2 = across2 + across2 * FloatPair{excess, 0.0f};
  return {((1.0f - chord2.high) - chord2.low) / (1.0f + sqrt(chord2.high)), (1.0f - across2.high) - across2.low};
}

// Bound like that of a Camera, which computes in double.
__device__ inline ExactBound exact_bound(const CudaExactView& view, float near) {
  const FloatPair exponent = (view.z_max - FloatPair{near, 0.0f}) * view.per_depth;
  if (!(exponent.high > 0.0f)) return {0.0f, 0.0f};
  const float whole = floorf(exponent.high);
  return {whole, (exponent.high - whole) + exponent.low};
}

}  // namespace lumigrad::spheres
