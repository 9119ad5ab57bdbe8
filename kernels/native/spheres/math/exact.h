// The exact engine's formulas: Pulsar's image formation with the true exponential, free of cancellation, and its true
// derivatives. Camera frame; p is the part of the centre q across the ray, q = p + o d for the unit ray d.
#pragma once

#include "common/math/exp.h"
#include "spheres/math/setup.h"

LG_BEGIN_ENGINE(spheres)

// Pixels whose (chord / r)^2 is about this close to 1 are computed with more precision than float.
inline constexpr float kOutline = 0.005f;

struct ExactView {
  float unit_x, unit_y;      // Size of a pixel on the plane z = 1 (perspective) or in scene units (orthogonal).
  float aspect;              // unit_y / unit_x
  float centre_x, centre_y;  // Film pixel of the optical axis.
  float background_high, background_low;  // The background's exponent, whole part and rest.
  float inverse_range;
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
          unit_x,
          unit_y,
          aspect,
          c.centre_x,
          c.centre_y};
}

// (x, y): film pixel. (u, v): where the pixel's ray meets the plane z = 1; orthogonal: its film position, scene units.
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

// Offset from the projected centre to the pixel, in pixels (of the horizontal size), and its squared length across the
// ray.
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

// 1 - chord / r and (half chord / r)^2 of one pixel, in double; on a device in pairs of floats (cuda/exact_view.cuh).
// `excess` is (chord / p)^2 - 1, which is small.
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

// Lengths are in radii.
template <class F>
struct ExactGeometry {
  F chord2;     // chord^2, with the chord |q - t d|
  F root;       // The chord
  F closeness;  // 1 - chord; 0 where the pixel misses the sphere
  F half2;      // r^2 - p^2
  F half_root;  // The half chord
  F sagitta;    // t - o
  F low;        // The exponent's rest; the record has its whole part.
  // 1 / root and 1 / half_root, if a pack needs them.
  F inverse_root, inverse_half_root;
};

// The largest ratio of a sphere's radius to its distance for which a short series gives exact_excess.
inline constexpr float kSlender = 0.17f;

// (chord / p)^2 - 1 of x = (p / t)^2: (1 - w) / (1 + w) with w = sqrt(1 - x). The next term of the series is
// 7 x^4 / 128.
template <class F>
LG_INLINE F exact_excess(F x, bool slender) {
  if (slender) return x * fma(x, fma(x, F(0.078125f), F(0.125f)), F(0.25f));
  // x may be above 1 where the pixel misses a near sphere.
  const F inverse = quick_inverse(F(1.0f) + sqrt(max(F(1.0f) - x, F(0.0f))));
  return x * inverse * inverse;
}

// Computes in float all values but half_root and low, before the outline is computed in double. `square` as in
// ExactOffset.
template <class F, bool kOrthogonal>
LG_INLINE ExactGeometry<F> exact_chord(const float* rec, F square, F& excess) {
  using namespace exact_record;
  ExactGeometry<F> g;
  const F one = F(1.0f);
  const F across2 = square * F(rec[kScale]);  // p^2
  excess = F(0.0f);
  g.chord2 = across2;
  g.sagitta = F(0.0f);
  if constexpr (!kOrthogonal) {
    const float ratio = rec[kRatio];
    const F bent = across2 * F(ratio);
    excess = exact_excess(bent * F(ratio), ratio < kSlender);
    g.chord2 = fma(across2, excess, across2);
    // chord^2 = 2 t (t - o)
    g.sagitta = fma(bent, excess, bent) * F(0.5f);
  }
  g.chord2 = max(g.chord2, F(1e-30f));
  g.root = sqrt(g.chord2);
  g.closeness = max(one - g.root, F(0.0f));
  g.half2 = one - across2;
  return g;
}

// exact_chord for many pixels of a sphere, with constants computed once, and with 1 / root. The closeness is negative
// where the pixel misses the sphere.
template <bool kOrthogonal>
class ExactChords {
 public:
  LG_INLINE explicit ExactChords(const float* rec)
      : scale_(rec[exact_record::kScale]),
        bend_(scale_ * (rec[exact_record::kRatio] * rec[exact_record::kRatio])),
        half_ratio_(0.5f * rec[exact_record::kRatio]),
        slender_(rec[exact_record::kRatio] < kSlender) {
    // The series of exact_excess, in the square.
    series_[0] = scale_ * bend_ * 0.25f;
    series_[1] = scale_ * (bend_ * bend_) * 0.125f;
    series_[2] = scale_ * (bend_ * bend_ * bend_) * 0.078125f;
  }

  template <class F>
  LG_INLINE ExactGeometry<F> at(F square) const {
    ExactGeometry<F> g;
    g.chord2 = max(chord2(square), F(1e-30f));
    g.sagitta = kOrthogonal ? F(0.0f) : g.chord2 * F(half_ratio_);
    g.inverse_root = quick_inverse_sqrt(g.chord2);
    g.root = g.chord2 * g.inverse_root;
    g.closeness = F(1.0f) - g.root;
    g.half2 = fnma(square, F(scale_), F(1.0f));
    return g;
  }

 private:
  template <class F>
  LG_INLINE F chord2(F square) const {
    if constexpr (kOrthogonal) return square * F(scale_);
    if (slender_) {
      return square * fma(square, fma(square, fma(square, F(series_[2]), F(series_[1])), F(series_[0])), F(scale_));
    }
    const F across2 = square * F(scale_);
    return fma(across2, exact_excess(square * F(bend_), false), across2);
  }

  float scale_, bend_, half_ratio_, series_[3];
  bool slender_;
};

// 1 / root and 1 / half_root. A scalar computes both from the inverse of their product, which takes fewer registers;
// the two roots are never both small.
template <class F>
struct InverseRoots {
  F root, half_root;
};
template <class F>
LG_INLINE InverseRoots<F> inverse_roots(const ExactGeometry<F>& g) {
  return {g.inverse_root, g.inverse_half_root};
}
LG_INLINE InverseRoots<float> inverse_roots(const ExactGeometry<float>& g) {
  const float both = quick_inverse_sqrt(g.chord2 * g.half2);
  return {g.half_root * both, g.root * both};
}

// At the outline float is not precise enough to decide which sphere a pixel shows: the closeness is a small difference
// there, while the exponent may give the sphere all the weight.
template <class F>
LG_INLINE auto exact_at_outline(const ExactGeometry<F>& g) {
  return g.closeness < F(0.5f * kOutline);
}

// Computes half_root and low. kInverse: computes half_root from its inverse, which is needed too.
template <bool kInverse = false, class F>
LG_INLINE void exact_finish(const float* rec, ExactGeometry<F>& g) {
  using namespace exact_record;
  // Next to the outline of an orthogonal camera's sphere the half chord vanishes, but more slowly than the closeness. A
  // lower bound of a millionth of the radius has no visible effect and keeps the derivative finite.
  g.half2 = max(g.half2, F(1e-12f));
  if constexpr (kInverse) {
    g.inverse_half_root = quick_inverse_sqrt(g.half2);
    g.half_root = g.half2 * g.inverse_half_root;
  } else {
    g.half_root = sqrt(g.half2);
  }
  g.low = fma(g.sagitta + g.half_root, F(rec[kSlope]), F(rec[kLow]));
}

// `wanted`: whether the result is used; if not, it is still finite.
template <class F, bool kOrthogonal, class View>
LG_INLINE ExactGeometry<F> exact_geometry(const float* rec, const ExactRay<F>& ray, const View& view, F square,
                                          bool wanted) {
  F excess;
  ExactGeometry<F> g = exact_chord<F, kOrthogonal>(rec, square, excess);
  if (wanted & exact_at_outline(g)) {
    const ExactOutline outline = exact_outline<kOrthogonal>(rec, view, ray.x, ray.y, excess);
    g.closeness = max(outline.closeness, 0.0f);
    g.half2 = outline.half2;
  }
  exact_finish(rec, g);
  return g;
}

template <class F, bool kOrthogonal, class View>
LG_INLINE ExactGeometry<F> exact_geometry(const float* rec, const ExactRay<F>& ray, const View& view, bool wanted) {
  return exact_geometry<F, kOrthogonal>(rec, ray, view, exact_offset<F, kOrthogonal>(rec, ray, view).square, wanted);
}

LG_INLINE float exact_radius(const float* rec) { return rec[exact_record::kDistance] * rec[exact_record::kRatio]; }

template <class F>
LG_INLINE F exact_depth(const float* rec, const ExactGeometry<F>& g) {
  return fnma(g.sagitta + g.half_root, F(exact_radius(rec)), F(rec[exact_record::kDistance]));
}

// The distance at which the sphere begins.
LG_INLINE float exact_near(const float* rec) { return rec[exact_record::kDistance] - exact_radius(rec); }

LG_END
