// OpenCV's pinhole with the rational radial, the tangential and the thin-prism distortion.
#pragma once

#include "gaussians/math/sensor/lens.h"

LG_BEGIN_ENGINE(gaussians)

struct OpenCVPinhole {
  // Radial factor above / below, with r = x^2 + y^2, and `slope`, its derivative with respect to r.
  template <class D>
  struct Radial {
    D below, factor, slope;
  };
  template <class D>
  static LG_INLINE Radial<D> radial(const Sensor& s, D r) {
    const double* k = s.parameters + lens_parameter::kRadial;
    const D one = D(1.0);
    Radial<D> f;
    const D above = fma(fma(fma(D(k[2]), r, D(k[1])), r, D(k[0])), r, one);
    f.below = fma(fma(fma(D(k[5]), r, D(k[4])), r, D(k[3])), r, one);
    const D above1 = fma(fma(D(3.0 * k[2]), r, D(2.0 * k[1])), r, D(k[0]));
    const D below1 = fma(fma(D(3.0 * k[5]), r, D(2.0 * k[4])), r, D(k[3]));
    f.factor = above / f.below;
    f.slope = (above1 - f.factor * below1) / f.below;
    return f;
  }

  // The image of a point at X / Z and Y / Z.
  template <class D>
  struct Bent {
    D x, y, r;
    Radial<D> radial;
    Pair<D> image;
  };
  template <class D>
  static LG_INLINE Bent<D> bent(const Sensor& s, D x, D y) {
    const double* t = s.parameters + lens_parameter::kTangential;
    const double* prism = s.parameters + lens_parameter::kThinPrism;
    const D two = D(2.0), r = fma(x, x, y * y);
    Bent<D> b{x, y, r, radial(s, r), {}};
    const D factor = b.radial.factor;
    const D xy = two * x * y, rxx = fma(two * x, x, r), ryy = fma(two * y, y, r);
    b.image.x = fma(factor, x, fma(D(t[0]), xy, fma(D(t[1]), rxx, r * fma(D(prism[1]), r, D(prism[0])))));
    b.image.y = fma(factor, y, fma(D(t[0]), ryy, fma(D(t[1]), xy, r * fma(D(prism[3]), r, D(prism[2])))));
    return b;
  }
  // The derivatives of the image with respect to x and y.
  template <class D>
  struct Slopes {
    D xx, xy, yx, yy;
  };
  template <class D>
  static LG_INLINE Slopes<D> slopes(const Sensor& s, const Bent<D>& b) {
    const double* t = s.parameters + lens_parameter::kTangential;
    const double* prism = s.parameters + lens_parameter::kThinPrism;
    const D two = D(2.0), six = D(6.0), p1 = D(t[0]), p2 = D(t[1]), factor = b.radial.factor, slope = b.radial.slope;
    const D prism_x = fma(two * b.r, D(prism[1]), D(prism[0])), prism_y = fma(two * b.r, D(prism[3]), D(prism[2]));
    const D cross = two * fma(b.x * b.y, slope, fma(p1, b.x, p2 * b.y));
    return {fma(two * b.x * b.x, slope, factor) + fma(two * p1, b.y, fma(six * p2, b.x, two * b.x * prism_x)),
            fma(two * b.y, prism_x, cross), fma(two * b.x, prism_y, cross),
            fma(two * b.y * b.y, slope, factor) + fma(six * p1, b.y, fma(two * p2, b.x, two * b.y * prism_y))};
  }

  template <class D>
  struct Distorted {
    Bent<D> bent;
    D pull;     // Factor that pulls points beyond the radius at which the radial map folds back to this radius.
    D inverse;  // 1 / Z
    D x0, y0;   // X / Z and Y / Z before the pull.
    MaskOf<D> ahead, inside, valid;
  };
  template <class D>
  static LG_INLINE Distorted<D> distorted(const Sensor& s, const Triple<D>& p) {
    const D one = D(1.0);
    Distorted<D> d;
    const Normalized<D> n = normalized(p);
    d.ahead = n.ahead;
    d.inverse = n.inverse;
    d.x0 = n.x;
    d.y0 = n.y;
    const D r0 = fma(n.x, n.x, n.y * n.y), limit = D(s.limit);
    d.inside = r0 < limit * limit;
    d.pull = one;
    if (any(!d.inside)) d.pull = select(d.inside, one, limit / sqrt(select(d.inside, one, r0)));
    d.bent = bent(s, n.x * d.pull, n.y * d.pull);
    d.valid = d.ahead & (s.monotone ? d.inside : d.bent.radial.factor > D(0.8));
    return d;
  }

  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor& s, const Triple<D>& p) {
    using namespace lens_parameter;
    const double* k = s.parameters;
    const Distorted<D> d = distorted(s, p);
    const Pair<D> pixel = {fma(d.bent.image.x, D(k[kFx]), D(k[kCx])), fma(d.bent.image.y, D(k[kFy]), D(k[kCy]))};
    return {masked<D>(d.ahead, pixel), d.valid};
  }

  template <class D>
  static LG_INLINE Jacobian<D> jacobian(const Sensor& s, const Triple<D>& p) {
    const Distorted<D> d = distorted(s, p);
    const Slopes<D> of = slopes(s, d.bent);
    // For pulled points only movements around the axis remain.
    const D limit2 = D(s.limit * s.limit), zero = D(0.0), one = D(1.0), x = d.bent.x, y = d.bent.y;
    const D ex = select(d.inside, zero, x * x / limit2), ey = select(d.inside, zero, y * y / limit2);
    const D exy = select(d.inside, zero, x * y / limit2);
    const D gx = D(s.parameters[lens_parameter::kFx]) * d.inverse * d.pull;
    const D gy = D(s.parameters[lens_parameter::kFy]) * d.inverse * d.pull;
    const D xu = gx * (of.xx * (one - ex) - of.xy * exy), xv = gx * (of.xy * (one - ey) - of.xx * exy);
    const D yu = gy * (of.yx * (one - ex) - of.yy * exy), yv = gy * (of.yy * (one - ey) - of.yx * exy);
    return masked<D>(d.ahead, Jacobian<D>{{xu, xv, -fma(xu, d.x0, xv * d.y0)}, {yu, yv, -fma(yu, d.x0, yv * d.y0)}});
  }

  // Adds the gradients of the coefficients, given the image's gradient.
  template <class D, class Add>
  static LG_INLINE void coefficients(const Bent<D>& b, const Pair<D>& v, const Add& add) {
    using namespace lens_parameter;
    const D two = D(2.0), r = b.r;
    D power = fma(v.x, b.x, v.y * b.y) / b.radial.below * r;
    for (int i = 0; i < 3; ++i) {
      add(kRadial + i, power);
      add(kRadial + 3 + i, -b.radial.factor * power);
      power = power * r;
    }
    const D xy = two * b.x * b.y;
    add(kTangential, fma(v.x, xy, v.y * fma(two * b.y, b.y, r)));
    add(kTangential + 1, fma(v.x, fma(two * b.x, b.x, r), v.y * xy));
    add(kThinPrism, v.x * r);
    add(kThinPrism + 1, v.x * r * r);
    add(kThinPrism + 2, v.y * r);
    add(kThinPrism + 3, v.y * r * r);
  }
  template <class D, class Add>
  static LG_INLINE void parameters(const Sensor& s, const Triple<D>& p, const Pair<D>& v, const Add& add) {
    using namespace lens_parameter;
    const Distorted<D> d = distorted(s, p);
    const Pair<D> seen = masked<D>(d.ahead, v);
    intrinsics_backward(d.bent.image, seen, add);
    coefficients(d.bent, Pair<D>{seen.x * D(s.parameters[kFx]), seen.y * D(s.parameters[kFy])}, add);
  }
};

LG_END
