// The exact engine's formulas: Pulsar's image formation with the true exponential, free of cancellation, and its true
// derivatives. Camera frame; p is the part of the centre q across the ray, q = p + o d for the unit ray d.
#pragma once

#include "common/exp.h"
#include "spheres/math_setup.h"

LG_BEGIN_ENGINE(spheres)

struct ExactView {
  float unit_x, unit_y;      // Size of a pixel on the plane z = 1 (perspective) or in scene units (orthogonal).
  float centre_x, centre_y;  // Film pixel of the optical axis.
  float background_high, background_low;  // The background's exponent, whole part and rest.
  float inverse_range;
};

LG_INLINE ExactView exact_view(const Camera& c, const Settings& s) {
  const double exponent = s.background_depth64 / s.gamma64;
  const double high = __builtin_floor(exponent + 0.5);
  return {static_cast<float>(1.0 / c.scale_x),
          static_cast<float>(1.0 / c.scale_y),
          static_cast<float>(c.centre_x),
          static_cast<float>(c.centre_y),
          static_cast<float>(high),
          static_cast<float>(exponent - high),
          static_cast<float>(1.0 / (c.z_max64 - c.z_min64))};
}

// (x, y): film pixel. (u, v): where its ray meets the plane z = 1; orthogonal: its film position in scene units.
template <class F>
struct ExactRay {
  F x, y, u, v;
  F inverse_square;  // 1 / |(u, v, 1)|^2; orthogonal: 1.
  F inverse_length;
};

template <class F, bool kOrthogonal>
LG_INLINE ExactRay<F> exact_ray(const ExactView& view, F x, F y) {
  const F u = (x - F(view.centre_x)) * F(view.unit_x), v = (y - F(view.centre_y)) * F(view.unit_y);
  const F inverse = kOrthogonal ? F(1.0f) : F(1.0f) / (F(1.0f) + u * u + v * v);
  return {x, y, u, v, inverse, sqrt(inverse)};
}

// From the projected centre to the pixel, on the plane z = 1, and its squared length across the ray.
template <class F>
struct ExactOffset {
  F x, y, twist;  // twist = u y - v x
  F square;
};

template <class F, bool kOrthogonal>
LG_INLINE ExactOffset<F> exact_offset(const float* rec, const ExactRay<F>& ray, const ExactView& view) {
  using namespace exact_record;
  ExactOffset<F> out;
  out.x = ((ray.x - F(rec[kXHigh])) - F(rec[kXLow])) * F(view.unit_x);
  out.y = ((ray.y - F(rec[kYHigh])) - F(rec[kYLow])) * F(view.unit_y);
  const F plane = fma(out.x, out.x, out.y * out.y);
  if constexpr (kOrthogonal) {
    out.twist = F(0.0f);
    out.square = plane;
  } else {
    out.twist = fma(ray.u, out.y, -(ray.v * out.x));
    out.square = fma(out.twist, out.twist, plane) * ray.inverse_square;
  }
  return out;
}

template <class F, bool kOrthogonal>
LG_INLINE auto exact_hit(const float* rec, const ExactRay<F>& ray, const ExactView& view) {
  return exact_offset<F, kOrthogonal>(rec, ray, view).square < F(rec[exact_record::kMaxSquare]);
}

template <class F>
struct ExactGeometry {
  ExactOffset<F> offset;
  F across;  // |p|
  F chord;   // |q - t d|
  F inverse_chord;
  F closeness;   // 1 - chord / r
  F along;       // o
  F half_chord;  // sqrt(r^2 - p^2)
  F inverse_half_chord;
  F sagitta;  // t - o
  F low;      // The exponent's rest; its whole part is the record's.
};

template <class F, bool kOrthogonal>
LG_INLINE ExactGeometry<F> exact_geometry(const float* rec, const ExactRay<F>& ray, const ExactView& view) {
  using namespace exact_record;
  ExactGeometry<F> g;
  const F r = F(rec[kR]), tiny = F(1e-36f);
  g.offset = exact_offset<F, kOrthogonal>(rec, ray, view);
  if constexpr (kOrthogonal) {
    g.inverse_chord = quick_inverse_sqrt(max(g.offset.square, tiny));
    g.across = g.chord = g.offset.square * g.inverse_chord;
    g.along = F(rec[kQz]);
    g.sagitta = F(0.0f);
  } else {
    const F t = F(rec[kT]);
    g.across = sqrt(g.offset.square) * F(rec[kQz]);
    const F p2 = g.across * g.across;
    g.along = sqrt((t - g.across) * (t + g.across));
    g.sagitta = p2 * quick_inverse(t + g.along);
    const F chord2 = F(2.0f) * t * g.sagitta;
    g.inverse_chord = quick_inverse_sqrt(max(chord2, tiny));
    g.chord = chord2 * g.inverse_chord;
  }
  g.closeness = max(fma(g.chord, F(-1.0f / rec[kR]), F(1.0f)), F(0.0f));
  // Next to the outline of an orthogonal camera's sphere the half chord vanishes, but the closeness faster: a
  // millionth of the radius is below any effect, and keeps the derivative finite.
  const F half2 = max((r - g.across) * (r + g.across), r * r * F(1e-12f));
  g.inverse_half_chord = quick_inverse_sqrt(half2);
  g.half_chord = half2 * g.inverse_half_chord;
  g.low = fma(g.sagitta + g.half_chord, F(rec[kSlope]), F(rec[kLow]));
  return g;
}

template <class F>
LG_INLINE F exact_depth(const float* rec, const ExactGeometry<F>& g) {
  return (F(rec[exact_record::kT]) - g.sagitta) - g.half_chord;
}

// dL/d(depth) = A and dL/d(chord) = B to the centre q, the radius and the ray:
//   dq = d (A - B (t-o)^2 / (t c)) + p (A / h + B (2 t - o) / (t c)),   dr = -A r / h,
//   dv = p (A (1 - o / h) - B t / c) / |v|      with c the chord, h the half chord, v = (u, v, 1) the ray.
// Orthogonal: d = (0, 0, 1), p = -(offset), dq = d A + p (A / h + B / c) and the film moves against p.
template <class F>
struct ExactPair {
  F x, y, z;
  F radius_depth;  // dL/dr through the depth.
  F ray_x, ray_y, ray_z;
};

template <class F, bool kOrthogonal>
LG_INLINE ExactPair<F> exact_pair(const float* rec, const ExactRay<F>& ray, const ExactGeometry<F>& g, F d_depth,
                                  F d_chord) {
  using namespace exact_record;
  ExactPair<F> out;
  const F r = F(rec[kR]);
  const F depth_half = d_depth * g.inverse_half_chord;
  const F chord_c = d_chord * g.inverse_chord;
  out.radius_depth = -(depth_half * r);
  if constexpr (kOrthogonal) {
    const F radial = depth_half + chord_c;
    out.x = -(g.offset.x * radial);
    out.y = -(g.offset.y * radial);
    out.z = d_depth;
    // Film position of a pixel grows with the pixel's size.
    out.ray_x = -(out.x * ray.u + out.y * ray.v);
    out.ray_y = out.ray_z = F(0.0f);
  } else {
    const F t = F(rec[kT]), inverse_t = F(1.0f / rec[kT]), qz = F(rec[kQz]);
    const F length = ray.inverse_length;
    // p = -qz (offset - v (v . offset) / |v|^2); its parts through the cross product: (v x offset) x v / |v|^2.
    const F scale = -(qz * ray.inverse_square);
    const F px = fma(-ray.v, g.offset.twist, g.offset.x);
    const F py = fma(ray.u, g.offset.twist, g.offset.y);
    const F pz = -fma(ray.u, g.offset.x, ray.v * g.offset.y);
    const F across = fma(chord_c, (t + g.sagitta) * inverse_t, depth_half) * scale;
    const F forward = (d_depth - chord_c * g.sagitta * g.sagitta * inverse_t) * length;
    out.x = fma(px, across, ray.u * forward);
    out.y = fma(py, across, ray.v * forward);
    out.z = fma(pz, across, forward);
    const F swing = (d_depth - depth_half * g.along - chord_c * t) * length * scale;
    out.ray_x = px * swing;
    out.ray_y = py * swing;
    out.ray_z = pz * swing;
  }
  return out;
}

LG_END
