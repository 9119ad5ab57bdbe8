// Pulsar's formulas (spec sections 1.1, 5.1 and 7), operation by operation, so that results round equally.
#pragma once

#include "spheres/math/setup.h"

// The functions take a record as an array of floats, one sphere for all pixels of a pack, or as an array of packs, one
// sphere per pixel.
LG_BEGIN_ENGINE(spheres)

// Spec 1.1: 2^p with the mantissa replaced by a straight line.
template <class F>
LG_INLINE F pulsar_exp(F x) {
  const F p = max(x * F(1.442695040f), F(-126.0f));
  return from_bits(truncate((p + F(126.94269504f)) * F(8388608.0f)));
}

template <class F>
LG_INLINE F pulsar_log(F x) {
  return to_float(bits(x)) * F(8.2629582881927490e-8f) - F(87.989971088f);
}

// Constants of a view.
struct CompatView {
  float gamma, z_min, inverse_range, range;
  float pixel;      // Pixel size, for orthogonal cameras.
  float log_share;  // L(pad / (1 - pad))
  bool may_stop;    // pad > 0
};

LG_INLINE CompatView compat_view(const Camera& c, const Settings& s) {
  const float share = min(s.allowed_difference, 1.0f - kFeps);
  return {
      s.gamma,     c.z_min, c.inverse_range, c.z_max - c.z_min, 2.0f * c.half_pixel, pulsar_log(share / (1.0f - share)),
      share > 0.0f};
}

// A pixel's ray. Perspective: unit direction (x, y, z) in the world. Orthogonal: (x, y) on the film, camera frame,
// and (z, w) the aperture pixel coordinates.
template <class F>
struct CompatRay {
  F x, y, z, w;
  F inverse_length;  // Perspective: inverse length of the unnormalised ray.
};

template <class F, bool kOrthogonal>
LG_INLINE CompatRay<F> compat_ray(const Camera& c, F px, F py) {
  if constexpr (kOrthogonal) {
    const F pixel = F(2.0f * c.half_pixel);
    return {(px - F(c.aperture_width * 0.5f)) * pixel, (py - F(c.aperture_height * 0.5f)) * pixel, px, py, F(1.0f)};
  } else {
    const F x = (F(c.origin[0]) + px * F(c.pixel_x[0])) + py * F(c.pixel_y[0]);
    const F y = (F(c.origin[1]) + px * F(c.pixel_x[1])) + py * F(c.pixel_y[1]);
    const F z = (F(c.origin[2]) + px * F(c.pixel_x[2])) + py * F(c.pixel_y[2]);
    const F inverse = F(1.0f) / sqrt((x * x + y * y) + z * z);
    return {x * inverse, y * inverse, z * inverse, F(0.0f), inverse};
  }
}

template <class F>
struct CompatOffset {
  F x, y, z;
  F square;  // cw^2
};

template <class F, bool kOrthogonal, class Record>
LG_INLINE CompatOffset<F> compat_offset(const Record& rec, const CompatRay<F>& ray) {
  using namespace compat_record;
  if constexpr (kOrthogonal) {
    const F x = F(rec[kX]) - ray.x, y = F(rec[kY]) - ray.y;
    return {x, y, F(0.0f), x * x + y * y};
  } else {
    const F t = F(rec[kT]);
    const F x = F(rec[kX]) - ray.x * t, y = F(rec[kY]) - ray.y * t, z = F(rec[kZ]) - ray.z * t;
    return {x, y, z, (x * x + y * y) + z * z};
  }
}

// Orthogonal only: the pixel that the centre falls into.
template <class F, class Record>
LG_INLINE auto compat_centre_pixel(const Record& rec, const CompatRay<F>& ray) {
  using namespace compat_record;
  return (abs(F(rec[kExtraX]) - ray.z) < F(0.5f + kFeps)) & (abs(F(rec[kExtraY]) - ray.w) < F(0.5f + kFeps));
}

template <class F, bool kOrthogonal>
LG_INLINE auto compat_hit(const float* rec, const CompatRay<F>& ray, const CompatOffset<F>& offset) {
  const auto inside = offset.square <= F(rec[compat_record::kMaxSquare]);
  if constexpr (kOrthogonal) {
    return inside | compat_centre_pixel(rec, ray);
  } else {
    return inside;
  }
}

template <class F>
struct CompatGeometry {
  CompatOffset<F> offset;
  F chord;       // cw
  F closeness;   // k
  F along;       // o
  F half_chord;  // hc
  F depth;
  F exponent;  // e
};

template <class F, bool kOrthogonal, class Record>
LG_INLINE CompatGeometry<F> compat_geometry(const Record& rec, const CompatRay<F>& ray, const CompatView& view,
                                            const CompatOffset<F>& offset) {
  using namespace compat_record;
  CompatGeometry<F> g;
  const F r = F(rec[kR]), zero = F(0.0f);
  g.offset = offset;
  g.chord = sqrt(g.offset.square);
  g.closeness = min(max(F(1.0f) - g.chord * F(rec[kInverseR]), zero), F(1.0f));
  F across;
  if constexpr (kOrthogonal) {
    g.closeness = select(compat_centre_pixel(rec, ray) & (F(rec[kTinyReach]) > zero), F(1.0f), g.closeness);
    g.along = F(abs(rec[kZ]));
    across = g.chord;
  } else {
    const F t = F(rec[kT]);
    g.closeness = select(g.chord < F(rec[kTinyReach]), F(1.0f), g.closeness);
    const F o = (F(rec[kX]) * ray.x + F(rec[kY]) * ray.y) + F(rec[kZ]) * ray.z;
    across = sqrt((t + o) * max(t - o, zero));
    g.along = min(o, t);
  }
  g.half_chord = sqrt((r + across) * max(r - across, zero));
  g.depth = g.along - g.half_chord;
  const F normalised = (g.depth - F(view.z_min)) * F(view.inverse_range);
  g.exponent = (F(1.0f) - normalised) / F(view.gamma) * F(rec[kOpacity]);
  return g;
}

template <class F, bool kOrthogonal, class Record>
LG_INLINE CompatGeometry<F> compat_geometry(const Record& rec, const CompatRay<F>& ray, const CompatView& view) {
  return compat_geometry<F, kOrthogonal>(rec, ray, view, compat_offset<F, kOrthogonal>(rec, ray));
}

// Spec 5.1, last line: blending continues after a candidate block whose last sphere is nearer than this.
template <class F>
LG_INLINE F compat_threshold(F denominator, F maximum, const CompatView& view) {
  const F level = (pulsar_log(denominator + F(kFeps)) + F(view.log_share)) + maximum;
  return (F(1.0f) - level * F(view.gamma)) * F(view.range) + F(view.z_min);
}

// The values that the pairs of a pixel share (spec section 7).
template <class F>
struct CompatPixel {
  F maximum, denominator;  // M, D
  F inverse;               // 1 / max(D, FEPS)
  F inverse_square;        // 1 / max(D^2, FEPS)
};

template <class F>
struct PairGradient {
  F x, y, z;  // dL/d centre: world (compat perspective) or camera frame
  F radius;
  F opacity;
  F share;                // w / D: dL/d colour = G * share
  F ray_x, ray_y, ray_z;  // dL/d ray; orthogonal: ray_x = dL/d pixel size / film position terms
};

// A channel's part of dL/dw, which subtracts the sphere from the image. If the sphere has all the weight, this cancels,
// and at a small gamma the rounding noise is visible in the gradients; so it is computed channel by channel, as in
// Pulsar.
template <class F>
LG_INLINE F compat_channel(F upstream, F color, F image, F denominator, F weight, F inverse_rest) {
  return upstream * (color - (image * denominator - color * weight) * inverse_rest);
}

// `toward(weight, inverse_rest)` is the sum of compat_channel over the channels; `wide` as in SetupResult.
template <class F, bool kOrthogonal, class Record, class Toward, class Mask>
LG_INLINE PairGradient<F> compat_pair(const Record& rec, const CompatRay<F>& ray, const CompatView& view,
                                      const CompatPixel<F>& pixel, const Toward& toward, Mask wide) {
  using namespace compat_record;
  PairGradient<F> out;
  const CompatGeometry<F> g = compat_geometry<F, kOrthogonal>(rec, ray, view);
  const F zero = F(0.0f), one = F(1.0f), feps = F(kFeps);
  const F a = F(rec[kOpacity]), r = F(rec[kR]);
  const F e_w = pulsar_exp(g.exponent - pixel.maximum);
  const F weight = max(min(g.closeness * e_w * a, pixel.denominator - feps), zero);
  const F rest = pixel.denominator - weight;
  const F dw = toward(weight, one / max(rest, feps)) * rest * pixel.inverse_square;
  out.share = weight * pixel.inverse;
  // (1 - nd) / gamma is the exponent without the opacity's factor, recomputed because the opacity may be 0.
  const F bare = (one - (g.depth - F(view.z_min)) * F(view.inverse_range)) / F(view.gamma);
  out.opacity = dw * e_w * g.closeness * (one + a * bare);
  const F keep = select(wide, dw, zero);
  const F d_depth = keep * (zero - g.closeness * e_w * a * a) * F(1.0f / (view.gamma * view.range));
  const F d_closeness = keep * e_w * a;
  const F half = max(g.half_chord, feps);
  const F inverse_half = quick_inverse(half);
  out.radius = d_closeness * g.chord * (F(rec[kInverseR]) * F(rec[kInverseR])) - d_depth * r * inverse_half;
  const CompatOffset<F>& rd = g.offset;
  if constexpr (kOrthogonal) {
    // Gradient with respect to the centre in the camera frame; ray_x is sum(gc * film position) over x and y.
    const F inverse_chord = d_closeness * quick_inverse(max(g.chord * r, feps));
    const F radial = d_depth * inverse_half - inverse_chord;
    out.x = rd.x * radial;
    out.y = rd.y * radial;
    out.z = select(F(rec[kZ]) > zero, d_depth, zero - d_depth);
    out.ray_x = zero - (out.x * ray.x + out.y * ray.y);
    out.ray_y = out.ray_z = zero;
  } else {
    const F cr = g.chord * r;
    // A ray through the centre has no preferred direction to move away in: the mean over directions has the limit 0.
    const F per_chord = select(cr > zero, d_closeness * quick_inverse(max(cr, F(1e-37f))), zero);
    const F m = (ray.x * rd.x + ray.y * rd.y) + ray.z * rd.z;
    const F t = F(rec[kT]), inverse_t = F(rec[kInverseT]);
    const F along = g.along;
    const F d_un = d_depth * inverse_half;
    const F ux = F(rec[kX]) - ray.x * along, uy = F(rec[kY]) - ray.y * along, uz = F(rec[kZ]) - ray.z * along;
    const F length = ray.inverse_length, ray_chord = per_chord * t * length;
    const F ray_depth = (d_depth - along * d_un) * length;
    out.ray_x = ux * ray_depth + (rd.x - ray.x * m) * ray_chord;
    out.ray_y = uy * ray_depth + (rd.y - ray.y * m) * ray_chord;
    out.ray_z = uz * ray_depth + (rd.z - ray.z * m) * ray_chord;
    const F mt = m * inverse_t;
    out.x = ray.x * d_depth + ux * d_un + (F(rec[kX]) * mt - rd.x) * per_chord;
    out.y = ray.y * d_depth + uy * d_un + (F(rec[kY]) * mt - rd.y) * per_chord;
    out.z = ray.z * d_depth + uz * d_un + (F(rec[kZ]) * mt - rd.z) * per_chord;
  }
  return out;
}

LG_END
