// Lenses whose distance from the principal point is a function of the angle from the axis: OpenCV's fisheye and
// f-theta. With e = (X, Y) / |(X, Y)| the image is distance(angle) * e.
#pragma once

#include <cmath>

#include "common/math/dual.h"
#include "gaussians/math/sensor/lens.h"

LG_BEGIN_ENGINE(gaussians)

template <class D>
struct Polar {
  D r;                      // Never 0: on the axis e is 0, and quotients by r have their limits.
  D ex, ey;                 // 0 on the axis.
  D angle;                  // Angle from the axis, at most the lens's limit.
  D along, outward;         // Derivatives of the angle: with respect to r, and to Z; 0 beyond the limit.
  MaskOf<D> within, ahead;  // `ahead`: in front of the camera, or anywhere if the lens shows points behind it.
};

template <class D>
LG_INLINE Polar<D> polar_of(const Sensor& s, const Triple<D>& p) {
  const D zero = D(0.0), one = D(1.0);
  const MaskOf<D> used = p.z > D(s.behind ? -HUGE_VAL : 0.0);
  const D x = select(used, p.x, zero), y = select(used, p.y, zero), z = select(used, p.z, one);
  Polar<D> q;
  const D r2 = max(fma(x, x, y * y), D(1e-30));
  q.r = sqrt(r2);
  q.ex = x / q.r;
  q.ey = y / q.r;
  const D angle = angle_from_x(q.r, z), limit = D(s.limit);
  q.within = angle < limit;
  q.angle = min(angle, limit);
  const D inverse = zero_unless(q.within, one / fma(z, z, r2));
  q.along = z * inverse;
  q.outward = -q.r * inverse;
  q.ahead = used;
  return q;
}

// The derivative of distance * e, given the distance and its derivative with respect to the angle.
template <class D>
LG_INLINE Jacobian<D> radial_jacobian(const Polar<D>& q, D distance, D slope) {
  const D ratio = distance / q.r, rising = slope * q.along, one = D(1.0);
  const D cross = q.ex * q.ey * (rising - ratio);
  return {{fma(q.ex * q.ex, rising, ratio * (one - q.ex * q.ex)), cross, slope * q.outward * q.ex},
          {cross, fma(q.ey * q.ey, rising, ratio * (one - q.ey * q.ey)), slope * q.outward * q.ey}};
}

struct Fisheye {
  // The distance angle (1 + k1 angle^2 + k2 angle^4 + ..), and its derivative.
  template <class D>
  static LG_INLINE Pair<D> distance(const Sensor& s, D angle) {
    const double* k = s.parameters + lens_parameter::kRadial;
    const double c[5] = {1.0, k[0], k[1], k[2], k[3]};
    const D square = angle * angle;
    const Pair<D> even = polynomial<5>(c, square);
    return {angle * even.x, fma(D(2.0) * square, even.y, even.x)};
  }
  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor& s, const Triple<D>& p) {
    using namespace lens_parameter;
    const double* k = s.parameters;
    const Polar<D> q = polar_of(s, p);
    const D far = distance(s, q.angle).x, ratio = far / q.r;
    const auto shown = q.ahead & (far > D(0.0));
    const Pair<D> pixel = {fma(ratio * p.x, D(k[kFx]), D(k[kCx])), fma(ratio * p.y, D(k[kFy]), D(k[kCy]))};
    const MaskOf<D> valid = shown & q.within;
    return {masked<D>(shown, pixel), valid};
  }
  template <class D>
  static LG_INLINE Jacobian<D> jacobian(const Sensor& s, const Triple<D>& p) {
    const Polar<D> q = polar_of(s, p);
    const Pair<D> far = distance(s, q.angle);
    const Jacobian<D> j = radial_jacobian(q, far.x, far.y);
    const D fx = D(s.parameters[lens_parameter::kFx]), fy = D(s.parameters[lens_parameter::kFy]);
    return masked<D>(q.ahead & (far.x > D(0.0)),
                     Jacobian<D>{{j.x.x * fx, j.x.y * fx, j.x.z * fx}, {j.y.x * fy, j.y.y * fy, j.y.z * fy}});
  }
  template <class D, class Add>
  static LG_INLINE void parameters(const Sensor& s, const Triple<D>& p, const Pair<D>& v, const Add& add) {
    using namespace lens_parameter;
    const Polar<D> q = polar_of(s, p);
    const D far = distance(s, q.angle).x;
    const Pair<D> seen = masked<D>(q.ahead & (far > D(0.0)), v);
    intrinsics_backward(Pair<D>{far * q.ex, far * q.ey}, seen, add);
    const D v_far = fma(q.ex * seen.x, D(s.parameters[kFx]), q.ey * seen.y * D(s.parameters[kFy]));
    const D square = q.angle * q.angle;
    D power = v_far * q.angle;
    for (int i = 0; i < 4; ++i) {
      power = power * square;
      add(kRadial + i, power);
    }
  }
};

struct FTheta {
  // The distance in pixels, and its derivative with respect to the angle.
  template <class D>
  static LG_INLINE Pair<D> distance(const Sensor& s, D angle) {
    const double* forward = s.parameters + lens_parameter::kAngleToDistance;
    if (!s.inverse_reference) return polynomial<6>(forward, angle);
    const D solved = solve(s, angle, polynomial<6>(forward, angle).x);
    return {solved, D(1.0) / polynomial<6>(s.parameters + lens_parameter::kDistanceToAngle, solved).y};
  }

  // The distance at which the second polynomial gives the angle, from the first guess x.
  template <class D>
  static LG_INLINE D solve(const Sensor& s, D angle, D x) {
    const double* c = s.parameters + lens_parameter::kDistanceToAngle;
    return s.monotone ? bracketed(s, c, angle, x) : newton(c, angle, x);
  }
  // The derivative is the polynomial's inverse slope, whatever the iteration's path.
  template <class D>
  static LG_INLINE Dual<D> solve(const Sensor& s, const Dual<D>& angle, const Dual<D>& x) {
    const D solved = solve(s, angle.value, x.value);
    return {solved, angle.slope / polynomial<6>(s.parameters + lens_parameter::kDistanceToAngle, solved).y};
  }
  // gsplat's three steps of Newton's method; if they converge, two more steps give the last digits.
  template <class D>
  static LG_INLINE D newton(const double* c, D angle, D x) {
    MaskOf<D> done = x < x;
    for (int i = 0; i < 3; ++i) {
      const Pair<D> f = polynomial<6>(c, x);
      const D step = (f.x - angle) / f.y;
      x = select(done, x, x - step);
      done = done | (abs(step) < D(1e-6));
    }
    for (int i = 0; i < 2; ++i) {
      const Pair<D> f = polynomial<6>(c, x);
      x = select(done, x - (f.x - angle) / f.y, x);
    }
    return x;
  }
  // Newton's method between 0 and where the polynomial stops rising, with bisection if a step leaves the bracket.
  template <class D>
  static LG_INLINE D bracketed(const Sensor& s, const double* c, D angle, D x) {
    D low = D(0.0), high = D(s.distance_limit);
    for (int i = 0; i < 60; ++i) {
      x = select((x >= low) & (x <= high), x, D(0.5) * (low + high));
      const Pair<D> f = polynomial<6>(c, x);
      const D error = f.x - angle, next = x - error / f.y;
      low = select(error <= D(0.0), x, low);
      high = select(error >= D(0.0), x, high);
      const auto moves = abs(next - x) > D(1e-13) * (x + D(1.0));
      x = next;
      if (!any(moves)) break;
    }
    return min(max(x, D(0.0)), D(s.distance_limit));
  }

  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor& s, const Triple<D>& p) {
    using namespace lens_parameter;
    const double* k = s.parameters;
    const Polar<D> q = polar_of(s, p);
    const D ratio = distance(s, q.angle).x / q.r, x = ratio * p.x, y = ratio * p.y;
    return {{fma(x, D(k[kLinear]), fma(y, D(k[kLinear + 1]), D(k[kCx]))), fma(x, D(k[kLinear + 2]), y + D(k[kCy]))},
            q.within};
  }
  template <class D>
  static LG_INLINE Jacobian<D> jacobian(const Sensor& s, const Triple<D>& p) {
    const double* m = s.parameters + lens_parameter::kLinear;
    const Polar<D> q = polar_of(s, p);
    const Pair<D> far = distance(s, q.angle);
    const Jacobian<D> j = radial_jacobian(q, far.x, far.y);
    const D c = D(m[0]), d = D(m[1]), e = D(m[2]);
    return {{fma(c, j.x.x, d * j.y.x), fma(c, j.x.y, d * j.y.y), fma(c, j.x.z, d * j.y.z)},
            {fma(e, j.x.x, j.y.x), fma(e, j.x.y, j.y.y), fma(e, j.x.z, j.y.z)}};
  }
  template <class D, class Add>
  static LG_INLINE void parameters(const Sensor& s, const Triple<D>& p, const Pair<D>& v, const Add& add) {
    using namespace lens_parameter;
    const double* m = s.parameters + kLinear;
    const Polar<D> q = polar_of(s, p);
    const Pair<D> far = distance(s, q.angle);
    const D x = far.x * q.ex, y = far.x * q.ey;
    add(kCx, v.x);
    add(kCy, v.y);
    add(kLinear, x * v.x);
    add(kLinear + 1, y * v.x);
    add(kLinear + 2, x * v.y);
    const D v_far = fma(q.ex, fma(D(m[0]), v.x, D(m[2]) * v.y), q.ey * fma(D(m[1]), v.x, v.y));
    const int first = s.inverse_reference ? kDistanceToAngle : kAngleToDistance;
    const D of = s.inverse_reference ? far.x : q.angle;
    D power = s.inverse_reference ? -v_far * far.y : v_far;
    for (int i = 0; i < 6; ++i) {
      add(first + i, power);
      power = power * of;
    }
  }
};

LG_END
