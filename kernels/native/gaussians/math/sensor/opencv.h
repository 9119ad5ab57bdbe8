// OpenCV's pinhole with the rational radial, the tangential and the thin-prism distortion.
#pragma once

#include "gaussians/math/sensor/lens.h"

LG_BEGIN_ENGINE(gaussians)

struct OpenCVPinhole {
  // With r = x^2 + y^2: the radial factor is above / below, and `slope` its derivative with respect to r.
  template <class D>
  struct Distorted {
    D x, y, r, below, factor, slope;
    D pull;         // Points beyond the radius at which the radial map folds back are pulled back to it.
    D inverse;      // 1 / Z
    D x0, y0;       // Before that: X / Z and Y / Z.
    Pair<D> image;  // After distortion.
    MaskOf<D> ahead, inside, valid;
  };

  template <class D>
  static LG_INLINE Distorted<D> distorted(const Sensor& s, const Triple<D>& p) {
    const double* k = s.parameters + lens_parameter::kRadial;
    const double* t = s.parameters + lens_parameter::kTangential;
    const double* prism = s.parameters + lens_parameter::kThinPrism;
    const D one = D(1.0), two = D(2.0);
    Distorted<D> d;
    const Normalized<D> n = normalized(p);
    d.ahead = n.ahead;
    d.inverse = n.inverse;
    d.x0 = n.x;
    d.y0 = n.y;
    const D r0 = fma(n.x, n.x, n.y * n.y), limit = D(s.limit);
    d.inside = r0 < limit * limit;
    d.pull = select(d.inside, one, limit / sqrt(select(d.inside, one, r0)));
    d.x = n.x * d.pull;
    d.y = n.y * d.pull;
    d.r = fma(d.x, d.x, d.y * d.y);
    const D r = d.r;
    const D above = fma(fma(fma(D(k[2]), r, D(k[1])), r, D(k[0])), r, one);
    d.below = fma(fma(fma(D(k[5]), r, D(k[4])), r, D(k[3])), r, one);
    const D above1 = fma(fma(D(3.0 * k[2]), r, D(2.0 * k[1])), r, D(k[0]));
    const D below1 = fma(fma(D(3.0 * k[5]), r, D(2.0 * k[4])), r, D(k[3]));
    d.factor = above / d.below;
    d.slope = (above1 - d.factor * below1) / d.below;
    const D xy = two * d.x * d.y, rxx = fma(two * d.x, d.x, r), ryy = fma(two * d.y, d.y, r);
    d.image.x = fma(d.factor, d.x, fma(D(t[0]), xy, fma(D(t[1]), rxx, r * fma(D(prism[1]), r, D(prism[0])))));
    d.image.y = fma(d.factor, d.y, fma(D(t[0]), ryy, fma(D(t[1]), xy, r * fma(D(prism[3]), r, D(prism[2])))));
    d.valid = d.ahead & (s.monotone ? d.inside : d.factor > D(0.8));
    return d;
  }

  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor& s, const Triple<D>& p) {
    using namespace lens_parameter;
    const double* k = s.parameters;
    const Distorted<D> d = distorted(s, p);
    const Pair<D> pixel = {fma(d.image.x, D(k[kFx]), D(k[kCx])), fma(d.image.y, D(k[kFy]), D(k[kCy]))};
    return {masked<D>(d.ahead, pixel), d.valid};
  }

  template <class D>
  static LG_INLINE Jacobian<D> jacobian(const Sensor& s, const Triple<D>& p) {
    const double* t = s.parameters + lens_parameter::kTangential;
    const double* prism = s.parameters + lens_parameter::kThinPrism;
    const Distorted<D> d = distorted(s, p);
    const D two = D(2.0), six = D(6.0), p1 = D(t[0]), p2 = D(t[1]);
    const D prism_x = fma(two * d.r, D(prism[1]), D(prism[0])), prism_y = fma(two * d.r, D(prism[3]), D(prism[2]));
    const D cross = two * fma(d.x * d.y, d.slope, fma(p1, d.x, p2 * d.y));
    const D xx = fma(two * d.x * d.x, d.slope, d.factor) + fma(two * p1, d.y, fma(six * p2, d.x, two * d.x * prism_x));
    const D yy = fma(two * d.y * d.y, d.slope, d.factor) + fma(six * p1, d.y, fma(two * p2, d.x, two * d.y * prism_y));
    const D xy = fma(two * d.y, prism_x, cross), yx = fma(two * d.x, prism_y, cross);
    // The pull leaves only movements around the axis.
    const D limit2 = D(s.limit * s.limit), zero = D(0.0), one = D(1.0);
    const D ex = select(d.inside, zero, d.x * d.x / limit2), ey = select(d.inside, zero, d.y * d.y / limit2);
    const D exy = select(d.inside, zero, d.x * d.y / limit2);
    const D gx = D(s.parameters[lens_parameter::kFx]) * d.inverse * d.pull;
    const D gy = D(s.parameters[lens_parameter::kFy]) * d.inverse * d.pull;
    const D xu = gx * (xx * (one - ex) - xy * exy), xv = gx * (xy * (one - ey) - xx * exy);
    const D yu = gy * (yx * (one - ex) - yy * exy), yv = gy * (yy * (one - ey) - yx * exy);
    return masked<D>(d.ahead, Jacobian<D>{{xu, xv, -fma(xu, d.x0, xv * d.y0)}, {yu, yv, -fma(yu, d.x0, yv * d.y0)}});
  }

  template <class D, class Add>
  static LG_INLINE void parameters(const Sensor& s, const Triple<D>& p, const Pair<D>& v, const Add& add) {
    using namespace lens_parameter;
    const Distorted<D> d = distorted(s, p);
    const Pair<D> seen = masked<D>(d.ahead, v);
    intrinsics_backward(d.image, seen, add);
    const D vx = seen.x * D(s.parameters[kFx]), vy = seen.y * D(s.parameters[kFy]), two = D(2.0), r = d.r;
    D power = fma(vx, d.x, vy * d.y) / d.below * r;
    for (int i = 0; i < 3; ++i) {
      add(kRadial + i, power);
      add(kRadial + 3 + i, -d.factor * power);
      power = power * r;
    }
    const D xy = two * d.x * d.y;
    add(kTangential, fma(vx, xy, vy * fma(two * d.y, d.y, r)));
    add(kTangential + 1, fma(vx, fma(two * d.x, d.x, r), vy * xy));
    add(kThinPrism, vx * r);
    add(kThinPrism + 1, vx * r * r);
    add(kThinPrism + 2, vy * r);
    add(kThinPrism + 3, vy * r * r);
  }
};

LG_END
