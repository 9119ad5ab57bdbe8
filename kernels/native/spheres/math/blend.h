// The blending of a hit into a pixel, and its gradient from the pixel's upstream gradients.
#pragma once

#include "spheres/math/compat.h"
#include "spheres/math/exact.h"

LG_BEGIN_ENGINE(spheres)

// The blend becomes scale * blend + weight * sphere; `higher`: whether the sphere raises the maximum.
template <class F, class Mask>
struct Joining {
  F weight, scale;
  Mask higher;
};

// Spec 5.1. One exponential serves as weight or as rescaling factor. Pulsar's exponential of 0 is not 1.
template <class F>
LG_INLINE auto compat_join(const float* record, F closeness, F exponent, F maximum) {
  const F difference = exponent - maximum;
  const auto higher = difference > F(0.0f);
  const F x = pulsar_exp(-abs(difference));
  const F weight = closeness * select(higher, pulsar_exp(F(0.0f)), x) * F(record[compat_record::kOpacity]);
  return Joining<F, decltype(difference > difference)>{weight, select(higher, x, F(1.0f)), higher};
}

// exp(x) for x <= 0, bounded from below, since less than e^-80 has no effect. The relative error grows with -x, but
// more slowly than the value decreases: where the weights sum to 1, the error is below that of a float.
template <class F>
LG_INLINE F exact_exp(F x) {
  return exp2_bounded(max(x, F(-80.0f)) * F(1.44269504f));
}

// Joins a sphere to the blend. `high` and `low` are the maximum exponent's whole part and rest, `exponent_low` the rest
// of this sphere's exponent.
template <class F>
LG_INLINE auto exact_join(const float* record, F closeness, F exponent_low, F high, F low) {
  using namespace exact_record;
  const F difference = (F(record[kHigh]) - high) + (exponent_low - low);
  const auto higher = difference > F(0.0f);
  const F x = exact_exp(-abs(difference));
  const F full = closeness * F(record[kOpacity]);
  return Joining<F, decltype(difference > difference)>{select(higher, full, full * x), select(higher, x, F(1.0f)),
                                                       higher};
}

// A bound of the exponents of spheres that begin at `near` or farther away: whole part and rest.
struct ExactBound {
  float whole, rest;
};

LG_INLINE ExactBound exact_bound(const Camera& c, const Settings& s, float near) {
  const double exponent = (c.z_max64 - static_cast<double>(near)) / (s.gamma64 * (c.z_max64 - c.z_min64));
  const double bound = exponent > 0.0 ? exponent : 0.0, whole = __builtin_floor(bound);
  return {static_cast<float>(whole), static_cast<float>(bound - whole)};
}

// Whether the pixel may stop: none of the `remaining` spheres can weigh more than the bound, and together they stay
// below the allowed share of the denominator.
template <class F>
LG_INLINE auto exact_may_stop(const Settings& s, ExactBound bound, int remaining, F high, F low, F denominator) {
  const F difference = (F(bound.whole) - high) + (F(bound.rest) - low);
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

// The sums of a sphere over its pixels, from which its gradients follow once (camera.h, exact_row).
template <class F>
struct ExactRow {
  F x, y, depth, radius, opacity;
};

// The sums of a pixel over its spheres.
template <class F>
struct ExactPixelSums {
  F x, y;    // See exact_ray_gradient.
  F spread;  // dL/de (e - M)
};

// Derivatives, with A = dL/d depth, B = dL/d chord, c the chord, h the half chord and all lengths in radii, for the
// part o of the centre q along the ray d, its distance t and its radius are
//   dL/do = A (1 - o / h) - B t / c,   dL/dr = -A / h - B c.
// Only dL/do d is summed for the centre, without the part along q: d is q / qz and the offset in the film, over |v|.
// Depth is homogeneous in q and r, and the closeness does not change with the scale, which gives the part along q,
//   q dL/dq + r dL/dr = sum of A depth,
// so that no sum is a small difference. Orthogonal: dL/dq is A along the ray and -offset (A / h + B / c) across it.
//
// Adds one pair; returns its share w / D: dL/d colour = G * share. `d_image_color` is the sum of G * c over the
// channels, `d_depth_map` the upstream gradient of the depth if this sphere gave it, else 0. Adds nothing where
// `takes_part` is false, whatever the upstream gradients are. kPlain: d_depth_map is 0, all opacities are 1, and
// row.opacity is not needed.
template <class F, bool kOrthogonal, bool kPlain, class Mask>
LG_INLINE F exact_add_pair(const float* record, const ExactRay<F>& ray, const ExactOffset<F>& offset,
                           const ExactGeometry<F>& g, const ExactPixel<F>& pixel, Mask takes_part, F d_image_color,
                           F d_depth_map, ExactRow<F>& row, ExactPixelSums<F>& sums) {
  using namespace exact_record;
  const F difference = min((F(record[kHigh]) - pixel.high) + (g.low - pixel.low), F(0.0f));
  const F bare = zero_unless(takes_part, exact_exp(difference));
  const F full = kPlain ? bare : bare * F(record[kOpacity]);
  const F dw = zero_unless(takes_part, (d_image_color - pixel.upstream) * pixel.inverse);
  const F weight = g.closeness * full, d_exponent = dw * weight, d_closeness = dw * full;
  sums.spread = fma(d_exponent, difference, sums.spread);
  F d_depth = d_exponent * F(-record[kSlope]);
  if constexpr (!kPlain) {
    d_depth = fma(zero_unless(takes_part, d_depth_map), F(exact_radius(record)), d_depth);
    // The derivative of a e^(a b), with b the exponent without the opacity's factor; the record has a b.
    row.opacity = fma(dw * bare, g.closeness * (F(1.0f) + (F(record[kHigh]) + g.low)), row.opacity);
  }
  const InverseRoots<F> inverse = inverse_roots(g);
  const F by_half = d_depth * inverse.half_root, by_chord = d_closeness * inverse.root;
  row.radius = fma(d_closeness, g.root, row.radius) - by_half;
  F pull;
  if constexpr (kOrthogonal) {
    pull = by_chord - by_half;
    row.depth = row.depth + d_depth;
  } else {
    const F distance = F(1.0f / record[kRatio]), along = distance - g.sagitta;
    pull = fma(by_chord, distance, fnma(by_half, along, d_depth)) * ray.inverse_length;
    row.depth = fma(d_depth, along - g.half_root, row.depth);
  }
  row.x = fma(pull, offset.x, row.x);
  row.y = fma(pull, offset.y, row.y);
  const F swing = pull * F(kOrthogonal ? record[kScale] : sqrt(record[kScale]));
  sums.x = fma(swing, offset.x, sums.x);
  sums.y = fma(swing, offset.y, sums.y);
  return weight * pixel.inverse;
}

// dL/du and dL/dv of the ray, in pixels (orthogonal: dL/d log of the pixel size, and 0), from the pixel's sums. The
// offsets' component along the ray has no effect.
template <class F, bool kOrthogonal>
LG_INLINE void exact_ray_gradient(const ExactRay<F>& ray, const ExactView& view, const ExactPixelSums<F>& sums, F& x,
                                  F& y) {
  if constexpr (kOrthogonal) {
    x = -(sums.x * ray.u + sums.y * ray.v) * F(1.0f / view.unit_x);
    y = F(0.0f);
  } else {
    const F twist = ray.u * sums.y - ray.v * sums.x;
    x = -(fnma(ray.v, twist, sums.x) * ray.inverse_square);
    y = -(fma(ray.u, twist, sums.y) * ray.inverse_square);
  }
}

LG_END
