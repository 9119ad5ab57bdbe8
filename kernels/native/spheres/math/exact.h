// The exact engine's formulas: Pulsar's image formation with the true exponential, free of cancellation, and its true
// derivatives. Camera frame; p is the part of the centre q across the ray, q = p + o d for the unit ray d.
#pragma once

#include "common/math/exp.h"
#include "spheres/math/setup.h"

LG_BEGIN_ENGINE(spheres)

// Pixels whose (chord / r)^2 is about this close to 1 are computed in double.
inline constexpr float kOutline = 0.005f;

struct ExactView {
  float unit_x, unit_y;      // Size of a pixel on the plane z = 1 (perspective) or in scene units (orthogonal).
  float aspect;              // unit_y / unit_x
  float centre_x, centre_y;  // Film pixel of the optical axis.
  float background_high, background_low;  // The background's exponent, whole part and rest.
  float inverse_range;
  float slope;  // 1 / (gamma * range): increase of the exponent per unit of depth.
  double unit64_x, unit64_y, aspect64, centre64_x, centre64_y;
};

LG_INLINE ExactView exact_view(const Camera& c, const Settings& s) {
  const double exponent = s.background_depth64 / s.gamma64, range = c.z_max64 - c.z_min64;
  const double high = __builtin_floor(exponent + 0.5);
  const double unit_x = 1.0 / c.scale_x, unit_y = 1.0 / c.scale_y, aspect = c.scale_x / c.scale_y;
  return {static_cast<float>(unit_x),
          static_cast<float>(unit_y),
          static_cast<float>(aspect),
          static_cast<float>(c.centre_x),
          static_cast<float>(c.centre_y),
          static_cast<float>(high),
          static_cast<float>(exponent - high),
          static_cast<float>(1.0 / range),
          static_cast<float>(1.0 / (s.gamma64 * range)),
          unit_x,
          unit_y,
          aspect,
          c.centre_x,
          c.centre_y};
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

// From the projected centre to the pixel, in pixels (of the horizontal size), and its squared length across the ray.
template <class F>
struct ExactOffset {
  F x, y, twist;  // twist = u y - v x
  F square;
};

template <class F, bool kOrthogonal>
LG_INLINE ExactOffset<F> exact_offset(const float* rec, const ExactRay<F>& ray, const ExactView& view) {
  using namespace exact_record;
  ExactOffset<F> out;
  out.x = (ray.x - F(rec[kXHigh])) - F(rec[kXLow]);
  out.y = ((ray.y - F(rec[kYHigh])) - F(rec[kYLow])) * F(view.aspect);
  const F plane = fma(out.x, out.x, out.y * out.y);
  if constexpr (kOrthogonal) {
    out.twist = F(0.0f);
    out.square = plane;
  } else {
    out.twist = fnma(ray.v, out.x, ray.u * out.y);
    out.square = fma(out.twist, out.twist, plane) * ray.inverse_square;
  }
  return out;
}

template <class F, bool kOrthogonal>
LG_INLINE auto exact_hit(const float* rec, const ExactRay<F>& ray, const ExactView& view) {
  return exact_offset<F, kOrthogonal>(rec, ray, view).square < F(rec[exact_record::kMaxSquare]);
}

// 1 - chord / r and (half chord / r)^2 of one pixel, in double. `excess` is (chord / p)^2 - 1, a small number.
struct ExactOutline {
  float closeness, half2;
};

template <bool kOrthogonal>
LG_INLINE ExactOutline exact_outline(const float* rec, const ExactView& view, float x, float y, float excess) {
  using namespace exact_record;
  const double dx = (static_cast<double>(x) - rec[kXHigh]) - rec[kXLow];
  const double dy = ((static_cast<double>(y) - rec[kYHigh]) - rec[kYLow]) * view.aspect64;
  double square = dx * dx + dy * dy;
  if constexpr (!kOrthogonal) {
    const double u = (x - view.centre64_x) * view.unit64_x, v = (y - view.centre64_y) * view.unit64_y;
    const double twist = u * dy - v * dx;
    square = (square + twist * twist) / (1.0 + u * u + v * v);
  }
  const double across2 = square * (static_cast<double>(rec[kScale]) + rec[kScaleLow]);
  const double chord2 = across2 + across2 * excess;
  return {static_cast<float>((1.0 - chord2) / (1.0 + sqrt64(chord2))), static_cast<float>(1.0 - across2)};
}

template <class F>
struct ExactGeometry {
  ExactOffset<F> offset;
  F root;           // chord / r, with the chord |q - t d|
  F inverse_chord;  // 1 / chord
  F closeness;      // 1 - chord / r; 0 where the pixel misses the sphere
  F along;          // o
  F half_chord;     // sqrt(r^2 - p^2)
  F inverse_half_chord;
  F sagitta;  // t - o
  F low;      // The exponent's rest; its whole part is the record's.
  F slope;    // Decrease of the exponent per unit of depth.
};

// The radius of a sphere over its distance, up to which a short series gives exact_excess.
inline constexpr float kSlender = 0.17f;

// (chord / p)^2 - 1 of x = (p / t)^2: (1 - w) / (1 + w) with w = sqrt(1 - x). The next term of the series is
// 7 x^4 / 128.
template <class F>
LG_INLINE F exact_excess(F x, bool slender) {
  if (slender) return x * fma(x, fma(x, F(0.078125f), F(0.125f)), F(0.25f));
  const F inverse = quick_inverse(F(1.0f) + sqrt(F(1.0f) - x));
  return x * inverse * inverse;
}

// `wanted`: where the result is used.
template <class F, bool kOrthogonal, class Mask>
LG_INLINE ExactGeometry<F> exact_geometry(const float* rec, const ExactRay<F>& ray, const ExactView& view,
                                          Mask wanted) {
  using namespace exact_record;
  ExactGeometry<F> g;
  const F r = F(rec[kR]), one = F(1.0f), tiny = F(1e-30f), inverse_r = F(1.0f / rec[kR]);
  g.offset = exact_offset<F, kOrthogonal>(rec, ray, view);
  // (p / r)^2 and (chord / r)^2.
  const F across2 = g.offset.square * F(rec[kScale]);
  F chord2 = across2, excess = F(0.0f);
  if constexpr (kOrthogonal) {
    g.along = F(rec[kQz]);
    g.sagitta = F(0.0f);
  } else {
    const float ratio = rec[kR] / rec[kT];
    excess = exact_excess(across2 * F(ratio * ratio), ratio < kSlender);
    chord2 = fma(across2, excess, across2);
    // chord^2 = 2 t (t - o)
    g.sagitta = chord2 * F(0.5f * rec[kR] * ratio);
    g.along = F(rec[kT]) - g.sagitta;
  }
  chord2 = max(chord2, tiny);
  g.root = sqrt(chord2);
  g.closeness = max(one - g.root, F(0.0f));
  F half2 = one - across2;
  // At the outline the closeness is a small difference, while the exponent may give it all the weight: there float is
  // not precise enough to decide which sphere a pixel shows.
  const auto outline = wanted & (g.closeness < F(0.5f * kOutline));
  if (any(outline)) {
    each_lane(outline, [&](int i) {
      const ExactOutline o = exact_outline<kOrthogonal>(rec, view, lane(ray.x, i), lane(ray.y, i), lane(excess, i));
      set_lane(g.closeness, i, max(o.closeness, 0.0f));
      set_lane(half2, i, o.half2);
    });
  }
  // Next to the outline of an orthogonal camera's sphere the half chord vanishes, but the closeness faster: a millionth
  // of the radius is below any effect, and keeps the derivative finite.
  half2 = max(half2, F(1e-12f));
  const F half_root = sqrt(half2);
  g.half_chord = half_root * r;
  // Both inverses from that of their product; not both roots are small.
  const F inverse_both = quick_inverse_sqrt(chord2 * half2) * inverse_r;
  g.inverse_chord = half_root * inverse_both;
  g.inverse_half_chord = g.root * inverse_both;
  g.slope = F(rec[kOpacity] * view.slope);
  g.low = fma(g.sagitta + g.half_chord, g.slope, F(rec[kLow]));
  return g;
}

template <class F>
LG_INLINE F exact_depth(const float* rec, const ExactGeometry<F>& g) {
  return (F(rec[exact_record::kT]) - g.sagitta) - g.half_chord;
}

// Distance at which the sphere begins.
template <bool kOrthogonal>
LG_INLINE float exact_near(const float* rec) {
  return (kOrthogonal ? rec[exact_record::kQz] : rec[exact_record::kT]) - rec[exact_record::kR];
}

// dL/d(depth) = A and dL/d(chord) = B to the centre q, the radius and the ray:
//   dq = d (A - B (t-o)^2 / (t c)) + p (A / h + B (2 t - o) / (t c)),   dr = -A r / h,
//   dv = p (A (1 - o / h) - B t / c) / |v|      with c the chord, h the half chord, v = (u, v, 1) the ray.
// Orthogonal: d = (0, 0, 1), p = -(offset), dq = d A + p (A / h + B / c) and the film moves against p.
template <class F>
struct ExactPair {
  F x, y, z;
  F d_half;  // A / h
  F ray_x, ray_y;
};

// `away` is -B.
template <class F, bool kOrthogonal>
LG_INLINE ExactPair<F> exact_pair(const float* rec, const ExactRay<F>& ray, const ExactView& view,
                                  const ExactGeometry<F>& g, F d_depth, F away) {
  using namespace exact_record;
  ExactPair<F> out;
  const F depth_half = d_depth * g.inverse_half_chord;
  const F away_c = away * g.inverse_chord;
  out.d_half = depth_half;
  if constexpr (kOrthogonal) {
    const F radial = (depth_half - away_c) * F(-view.unit_x);
    out.x = g.offset.x * radial;
    out.y = g.offset.y * radial;
    out.z = d_depth;
    // Film position of a pixel grows with the pixel's size.
    out.ray_x = -(out.x * ray.u + out.y * ray.v);
    out.ray_y = F(0.0f);
  } else {
    const float inverse_t = 1.0f / rec[kT];
    // p = -qz (offset - v (v . offset) / |v|^2); its parts through the cross product: (v x offset) x v / |v|^2.
    const F scale = F(-(rec[kQz] * view.unit_x)) * ray.inverse_square;
    const F px = fnma(ray.v, g.offset.twist, g.offset.x);
    const F py = fma(ray.u, g.offset.twist, g.offset.y);
    const F minus_pz = fma(ray.u, g.offset.x, ray.v * g.offset.y);
    const F bent = g.sagitta * F(inverse_t);
    const F across = fnma(away_c, F(1.0f) + bent, depth_half) * scale;
    const F forward = fma(away_c * g.sagitta, bent, d_depth) * ray.inverse_length;
    out.x = fma(px, across, ray.u * forward);
    out.y = fma(py, across, ray.v * forward);
    out.z = fnma(minus_pz, across, forward);
    const F swing = fma(away_c, F(rec[kT]), fnma(depth_half, g.along, d_depth)) * (ray.inverse_length * scale);
    out.ray_x = px * swing;
    out.ray_y = py * swing;
  }
  return out;
}

LG_END
