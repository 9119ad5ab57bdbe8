// Angles in double, as templates on the number type, without branches or library calls. Absolute error below 1e-15
// times the angle.
#pragma once

#include "common/math/number64.h"

LG_BEGIN

// atan2(y, x) for y >= 0, in [0, pi].
template <class D>
LG_INLINE D angle_from_x(D y, D x) {
  constexpr double kQuarter = 0.7853981633974483, kHalf = 1.5707963267948966, kPi = 3.141592653589793;
  const D across = abs(x);
  const auto steep = y > across;
  const D low = select(steep, across, y), high = max(select(steep, y, across), D(1e-300));
  // Beyond tan(pi / 8), atan(t) = pi / 4 + atan((t - 1) / (t + 1)).
  const auto wide = low > high * D(0.41421356237309503);
  const D t = select(wide, low - high, low) / select(wide, low + high, high), z = t * t;
  // (atan(t) - t) / t^3, minimax polynomial in t^2.
  D p = D(-0.019174543572021332);
  p = fma(p, z, D(0.03922974453661223));
  p = fma(p, z, D(-0.050853834888428314));
  p = fma(p, z, D(0.058581362519061463));
  p = fma(p, z, D(-0.06664509989818044));
  p = fma(p, z, D(0.07692183087342026));
  p = fma(p, z, D(-0.0909090457366906));
  p = fma(p, z, D(0.11111111015146715));
  p = fma(p, z, D(-0.1428571428466518));
  p = fma(p, z, D(0.19999999999995514));
  p = fma(p, z, D(-0.3333333333333333));
  D angle = fma(t * z, p, t);
  angle = select(wide, angle + D(kQuarter), angle);
  angle = select(steep, D(kHalf) - angle, angle);
  return select(x < D(0.0), D(kPi) - angle, angle);
}

// asin(x) for x in [-1, 1].
template <class D>
LG_INLINE D angle_of_sine(D x) {
  const D a = min(abs(x), D(1.0));
  const D angle = angle_from_x(a, sqrt((D(1.0) - a) * (D(1.0) + a)));
  return select(x < D(0.0), -angle, angle);
}

template <class D>
struct SineCosine {
  D sine, cosine;
};

// Sine and cosine of |angle| < pi / 4.
template <class D>
LG_INLINE SineCosine<D> sine_cosine_of_small(D r) {
  const D z = r * r;
  D s = D(-1.0 / 1307674368000.0);
  s = fma(s, z, D(1.0 / 6227020800.0));
  s = fma(s, z, D(-1.0 / 39916800.0));
  s = fma(s, z, D(1.0 / 362880.0));
  s = fma(s, z, D(-1.0 / 5040.0));
  s = fma(s, z, D(1.0 / 120.0));
  s = fma(s, z, D(-1.0 / 6.0));
  D c = D(1.0 / 20922789888000.0);
  c = fma(c, z, D(-1.0 / 87178291200.0));
  c = fma(c, z, D(1.0 / 479001600.0));
  c = fma(c, z, D(-1.0 / 3628800.0));
  c = fma(c, z, D(1.0 / 40320.0));
  c = fma(c, z, D(-1.0 / 720.0));
  c = fma(c, z, D(1.0 / 24.0));
  c = fma(c, z, D(-0.5));
  return {fma(r * z, s, r), fma(c, z, D(1.0))};
}

// Sine and cosine of |angle| < 1e6.
template <class D>
LG_INLINE SineCosine<D> sine_cosine(D angle) {
  if (!any(abs(angle) > D(0.78))) return sine_cosine_of_small(angle);
  const D n = nearest_whole(angle * D(0.6366197723675814));
  const D r = fnma(n, D(6.077100506506192e-11), fnma(n, D(1.5707963267341256), angle));
  const SineCosine<D> small = sine_cosine_of_small(r);
  const D s = small.sine, c = small.cosine;
  // Quadrants 0 to 3.
  const D quadrant = n - D(4.0) * floor_whole(n * D(0.25));
  const auto second_half = quadrant > D(1.5);
  const D within = select(second_half, quadrant - D(2.0), quadrant);
  const auto odd = within > D(0.5);
  const D sine = select(odd, c, s), cosine = select(odd, -s, c);
  return {select(second_half, -sine, sine), select(second_half, -cosine, cosine)};
}

LG_END
