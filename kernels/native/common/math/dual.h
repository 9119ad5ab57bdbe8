// Numbers with a derivative: a formula that is a template on the number type, evaluated at {x, direction}, yields its
// value at x and its derivative along the direction.
#pragma once

#include "common/math/angle.h"

LG_BEGIN

template <class D>
struct Dual {
  D value, slope;
  Dual() = default;
  LG_INLINE Dual(double constant) : value(constant), slope(0.0) {}
  LG_INLINE Dual(const D& at, const D& along) : value(at), slope(along) {}
};

template <class D>
LG_INLINE Dual<D> operator+(const Dual<D>& a, const Dual<D>& b) {
  return {a.value + b.value, a.slope + b.slope};
}
template <class D>
LG_INLINE Dual<D> operator-(const Dual<D>& a, const Dual<D>& b) {
  return {a.value - b.value, a.slope - b.slope};
}
template <class D>
LG_INLINE Dual<D> operator-(const Dual<D>& a) {
  return {-a.value, -a.slope};
}
template <class D>
LG_INLINE Dual<D> operator*(const Dual<D>& a, const Dual<D>& b) {
  return {a.value * b.value, fma(a.value, b.slope, a.slope * b.value)};
}
template <class D>
LG_INLINE Dual<D> operator/(const Dual<D>& a, const Dual<D>& b) {
  const D inverse = D(1.0) / b.value, value = a.value * inverse;
  return {value, fnma(value, b.slope, a.slope) * inverse};
}
template <class D>
LG_INLINE Dual<D> fma(const Dual<D>& a, const Dual<D>& b, const Dual<D>& c) {
  return {fma(a.value, b.value, c.value), fma(a.value, b.slope, fma(a.slope, b.value, c.slope))};
}

template <class D>
LG_INLINE auto operator<(const Dual<D>& a, const Dual<D>& b) {
  return a.value < b.value;
}
template <class D>
LG_INLINE auto operator<=(const Dual<D>& a, const Dual<D>& b) {
  return a.value <= b.value;
}
template <class D>
LG_INLINE auto operator>(const Dual<D>& a, const Dual<D>& b) {
  return a.value > b.value;
}
template <class D>
LG_INLINE Dual<D> select(MaskOf<D> mask, const Dual<D>& a, const Dual<D>& b) {
  return {select(mask, a.value, b.value), select(mask, a.slope, b.slope)};
}
template <class D>
LG_INLINE Dual<D> zero_unless(MaskOf<D> mask, const Dual<D>& a) {
  return {zero_unless(mask, a.value), zero_unless(mask, a.slope)};
}
template <class D>
LG_INLINE Dual<D> min(const Dual<D>& a, const Dual<D>& b) {
  return select<D>(a.value < b.value, a, b);
}
template <class D>
LG_INLINE Dual<D> max(const Dual<D>& a, const Dual<D>& b) {
  return select<D>(a.value > b.value, a, b);
}
// Square root of a > 0.
template <class D>
LG_INLINE Dual<D> sqrt(const Dual<D>& a) {
  const D root = sqrt(a.value);
  return {root, D(0.5) * a.slope / root};
}

// The functions of angle.h, with analytic derivatives.
template <class D>
LG_INLINE Dual<D> angle_from_x(const Dual<D>& y, const Dual<D>& x) {
  const D square = max(fma(x.value, x.value, y.value * y.value), D(1e-300));
  return {angle_from_x(y.value, x.value), fma(x.value, y.slope, -(y.value * x.slope)) / square};
}
template <class D>
LG_INLINE Dual<D> angle_of_sine(const Dual<D>& x) {
  const D cosine = sqrt(max(fnma(x.value, x.value, D(1.0)), D(1e-12)));
  return {angle_of_sine(x.value), x.slope / cosine};
}
template <class D>
LG_INLINE SineCosine<Dual<D>> sine_cosine(const Dual<D>& angle) {
  const SineCosine<D> of = sine_cosine(angle.value);
  return {{of.sine, of.cosine * angle.slope}, {of.cosine, -(of.sine * angle.slope)}};
}

LG_END
