// The blending of a hit into a pixel, and its gradient from the pixel's upstream gradients.
#pragma once

#include "spheres/math/compat.h"
#include "spheres/math/exact.h"

LG_BEGIN_ENGINE(spheres)

// The blend becomes scale * blend + weight * sphere; `higher` where the sphere raises the maximum.
template <class F, class Mask>
struct Joining {
  F weight, scale;
  Mask higher;
};

// Spec 5.1. One exponential serves as weight or as rescaling factor; e^0 of Pulsar's exponential is not 1.
template <class F>
LG_INLINE auto compat_join(const float* record, const CompatGeometry<F>& g, F maximum) {
  const F difference = g.exponent - maximum;
  const auto higher = difference > F(0.0f);
  const F x = pulsar_exp(-abs(difference));
  const F weight = g.closeness * select(higher, pulsar_exp(F(0.0f)), x) * F(record[compat_record::kOpacity]);
  return Joining<F, decltype(difference > difference)>{weight, select(higher, x, F(1.0f)), higher};
}

// The exponent's maximum as whole part and rest; `exponent_low` is the rest of this sphere's.
template <class F>
LG_INLINE auto exact_join(const float* record, F closeness, F exponent_low, F high, F low) {
  using namespace exact_record;
  const F difference = (F(record[kHigh]) - high) + (exponent_low - low);
  const auto higher = difference > F(0.0f);
  const F x = exp_negative(-abs(difference));
  const F full = closeness * F(record[kOpacity]);
  return Joining<F, decltype(difference > difference)>{select(higher, full, full * x), select(higher, x, F(1.0f)),
                                                       higher};
}

// Where the pixel may stop: all `remaining` spheres are at least as far away as `near`, and none can weigh more than
// the bound, so that together they stay below the allowed share of the denominator.
template <class F>
LG_INLINE auto exact_may_stop(const Camera& c, const Settings& s, float near, int remaining, F high, F low,
                              F denominator) {
  const double exponent = (c.z_max64 - static_cast<double>(near)) / (s.gamma64 * (c.z_max64 - c.z_min64));
  const double bound = exponent > 0.0 ? exponent : 0.0, whole = __builtin_floor(bound);
  const F difference = (F(static_cast<float>(whole)) - high) + (F(static_cast<float>(bound - whole)) - low);
  const float share = s.allowed_difference > 5.9604645e-8f ? s.allowed_difference : 5.9604645e-8f;
  const F weight = exp_negative(min(difference, F(0.0f))) * F(static_cast<float>(remaining));
  return (difference < F(0.0f)) & (weight <= denominator * F(share));
}

// exp(e0 - M) of the background.
template <class F>
LG_INLINE F exact_background(const ExactView& view, F high, F low) {
  return exp_negative(min((F(view.background_high) - high) + (F(view.background_low) - low), F(0.0f)));
}

// The share w / D of a tracked sphere in its pixel.
template <class F>
LG_INLINE F compat_share(const float* record, const CompatGeometry<F>& g, F maximum, F denominator) {
  const F weight = g.closeness * pulsar_exp(g.exponent - maximum) * F(record[compat_record::kOpacity]);
  return max(min(weight, denominator - F(kFeps)), F(0.0f)) / max(denominator, F(kFeps));
}

template <class F>
LG_INLINE F exact_share(const float* record, const ExactGeometry<F>& g, F high, F low, F denominator) {
  using namespace exact_record;
  const F difference = (F(record[kHigh]) - high) + (g.low - low);
  return g.closeness * F(record[kOpacity]) * exp_negative(min(difference, F(0.0f))) / denominator;
}

// The values that the pairs of a pixel share (exact).
template <class F>
struct ExactPixel {
  F high, low;  // M
  F inverse;    // 1 / D
  F upstream;   // Sum of G * I, minus the alpha's upstream times the background's weight
};

// The contribution of one pair to its sphere's row and its pixel's sums.
template <class F>
struct ExactSums {
  F x, y, z, radius, opacity;  // The row: dL/d centre in the camera frame, radius, opacity.
  F share;                     // w / D: dL/d colour = G * share
  F ray_x, ray_y;
  F spread;  // dL/de (e - M)
};

// `d_image_color` is the sum of G * c over the channels; `d_depth_map` the upstream gradient of the depth where this
// sphere gave it, else 0.
template <class F, bool kOrthogonal>
LG_INLINE ExactSums<F> exact_sums(const float* record, const ExactRay<F>& ray, const ExactView& view,
                                  const ExactGeometry<F>& g, const ExactPixel<F>& pixel, F d_image_color,
                                  F d_depth_map) {
  using namespace exact_record;
  ExactSums<F> out;
  const F difference = min((F(record[kHigh]) - pixel.high) + (g.low - pixel.low), F(0.0f));
  const F bare = exp_negative(difference), full = bare * F(record[kOpacity]);
  const F weight = g.closeness * full;
  const F dw = (d_image_color - pixel.upstream) * pixel.inverse;
  out.share = weight * pixel.inverse;
  // The derivative of a e^(a b) with b the exponent without the opacity's factor; the record has a b.
  out.opacity = dw * bare * g.closeness * (F(1.0f) + (F(record[kHigh]) + g.low));
  const F d_exponent = dw * weight;
  out.spread = d_exponent * difference;
  const F d_depth = fnma(d_exponent, g.slope, d_depth_map);
  const F per_radius = dw * full * F(1.0f / record[kR]);  // -dL/d chord
  const ExactPair<F> pair = exact_pair<F, kOrthogonal>(record, ray, view, g, d_depth, per_radius);
  out.x = pair.x;
  out.y = pair.y;
  out.z = pair.z;
  out.radius = fnma(pair.d_half, F(record[kR]), per_radius * g.root);
  out.ray_x = pair.ray_x;
  out.ray_y = pair.ray_y;
  return out;
}

LG_END
