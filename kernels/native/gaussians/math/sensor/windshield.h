// Glass in front of a lens: it bends the ray of a point by two polynomials of the ray's angles (sensors spec section
// 4). Computes the resulting direction, its derivative, and the gradient of the polynomials.
#pragma once

#include "common/math/angle.h"
#include "gaussians/math/sensor/lens.h"
#include "gaussians/math/shape.h"

LG_BEGIN_ENGINE(gaussians)

// The polynomial sum over j of y^j times sum over i <= order - j of c x^i, with coefficients grouped by j.
template <class D>
struct Surface {
  D value, x, y;  // The value and its derivatives.
};
template <class D>
LG_INLINE Surface<D> surface_at(const double* c, D x, D y) {
  Surface<D> s = {D(0.0), D(0.0), D(0.0)};
  int end = lens_parameter::kWindshield;
  for (int j = kWindshieldOrder; j >= 0; --j) {
    const int count = kWindshieldOrder - j + 1;
    D value = D(0.0), slope = D(0.0);
    for (int i = count - 1; i >= 0; --i) {
      slope = fma(slope, x, value);
      value = fma(value, x, D(c[end - count + i]));
    }
    end -= count;
    s.y = fma(s.y, y, s.value);
    s.value = fma(s.value, y, value);
    s.x = fma(s.x, y, slope);
  }
  return s;
}

template <class D>
struct Bent {
  Triple<D> to;                  // Unit direction.
  Triple<D> by;                  // Unit direction of the point.
  D inverse;                     // 1 / distance of the point
  D horizontal, vertical;        // Angles of the point's direction.
  D slope_h, slope_v;            // Derivatives of these angles with respect to `by`.x and `by`.y.
  Surface<D> of_x, of_y;         // Angles of the result.
  D cosine_x, cosine_y, over_z;  // Cosines of the result's angles; 1 / z of the result.
};

template <class D>
LG_INLINE Bent<D> bend(const Sensor& s, const Triple<D>& p) {
  const D one = D(1.0), least = D(1e-30);
  Bent<D> b;
  b.inverse = one / sqrt(max(dot(p, p), least));
  b.by = scaled(p, b.inverse);
  b.horizontal = angle_of_sine(b.by.x);
  b.vertical = angle_of_sine(b.by.y);
  b.slope_h = one / sqrt(max(fma(-b.by.x, b.by.x, one), D(1e-12)));
  b.slope_v = one / sqrt(max(fma(-b.by.y, b.by.y, one), D(1e-12)));
  b.of_x = surface_at(s.parameters + lens_parameter::kHorizontal, b.horizontal, b.vertical);
  b.of_y = surface_at(s.parameters + lens_parameter::kVertical, b.horizontal, b.vertical);
  const SineCosine<D> x = sine_cosine(b.of_x.value), y = sine_cosine(b.of_y.value);
  b.cosine_x = x.cosine;
  b.cosine_y = y.cosine;
  const D z = sqrt(max(one - fma(x.sine, x.sine, y.sine * y.sine), least));
  b.to = {x.sine, y.sine, select(p.z < D(0.0), -z, z)};
  b.over_z = one / b.to.z;
  return b;
}

// Gradients of the sines of the result's angles, from the result's gradient.
template <class D>
LG_INLINE Pair<D> sines_backward(const Bent<D>& b, const Triple<D>& v) {
  return {b.cosine_x * fma(-v.z * b.over_z, b.to.x, v.x), b.cosine_y * fma(-v.z * b.over_z, b.to.y, v.y)};
}

template <class D>
LG_INLINE Triple<D> bend_backward(const Bent<D>& b, const Triple<D>& v) {
  const Pair<D> a = sines_backward(b, v);
  const D x = b.slope_h * fma(a.x, b.of_x.x, a.y * b.of_y.x), y = b.slope_v * fma(a.x, b.of_x.y, a.y * b.of_y.y);
  const D along = fma(b.by.x, x, b.by.y * y);
  return scaled(Triple<D>{fma(-b.by.x, along, x), fma(-b.by.y, along, y), -b.by.z * along}, b.inverse);
}

template <class D, class Add>
LG_INLINE void windshield_parameters(const Bent<D>& b, const Triple<D>& v, const Add& add) {
  const Pair<D> a = sines_backward(b, v);
  D row = D(1.0);
  int at = 0;
  for (int j = 0; j <= kWindshieldOrder; ++j) {
    D term = row;
    for (int i = 0; i <= kWindshieldOrder - j; ++i, ++at) {
      add(lens_parameter::kHorizontal + at, a.x * term);
      add(lens_parameter::kVertical + at, a.y * term);
      term = term * b.horizontal;
    }
    row = row * b.vertical;
  }
}

// A lens, and the glass in front of it if the sensor has one.
template <class Lens>
struct Optics {
  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor& s, const Triple<D>& p) {
    return Lens::project(s, s.windshield ? bend(s, p).to : p);
  }
  template <class D>
  static LG_INLINE Jacobian<D> jacobian(const Sensor& s, const Triple<D>& p) {
    if (!s.windshield) return Lens::jacobian(s, p);
    const Bent<D> b = bend(s, p);
    const Jacobian<D> j = Lens::jacobian(s, b.to);
    return {bend_backward(b, j.x), bend_backward(b, j.y)};
  }
  template <class D, class Add>
  static LG_INLINE void parameters(const Sensor& s, const Triple<D>& p, const Pair<D>& v, const Add& add) {
    if (!s.windshield) return Lens::parameters(s, p, v, add);
    const Bent<D> b = bend(s, p);
    Lens::parameters(s, b.to, v, add);
    windshield_parameters(b, pulled_back(Lens::jacobian(s, b.to), v), add);
  }
};

LG_END
