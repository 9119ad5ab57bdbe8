// The lenses of sensors: from a point in the camera's frame to a pixel in doubles, its Jacobian, and the gradient of
// the lens's parameters (sensors spec section 4). Each family has the same three functions:
//   project(sensor, p) -> pixel, valid;   jacobian(sensor, p);   parameters(sensor, p, v_pixel, add).
// `parameters` calls add(index, value) for each parameter, indexed as Sensor::parameters. A point that a lens does not
// show still has a pixel, which sigma points use. This header has the perfect lenses, and code that the families share.
#pragma once

#include "common/math/number64.h"
#include "gaussians/math/camera.h"

LG_BEGIN_ENGINE(gaussians)

template <class D>
struct OnFilm {
  Pair<D> pixel;
  MaskOf<D> valid;
};

// v^T J.
template <class D>
LG_INLINE Triple<D> pulled_back(const Jacobian<D>& j, const Pair<D>& v) {
  return {fma(j.x.x, v.x, j.y.x * v.y), fma(j.x.y, v.x, j.y.y * v.y), fma(j.x.z, v.x, j.y.z * v.y)};
}
template <class D>
LG_INLINE Pair<D> product(const Jacobian<D>& j, const Triple<D>& v) {
  return {dot(j.x, v), dot(j.y, v)};
}
template <class D>
LG_INLINE Jacobian<D> masked(MaskOf<D> mask, const Jacobian<D>& j) {
  return {{zero_unless(mask, j.x.x), zero_unless(mask, j.x.y), zero_unless(mask, j.x.z)},
          {zero_unless(mask, j.y.x), zero_unless(mask, j.y.y), zero_unless(mask, j.y.z)}};
}
template <class D>
LG_INLINE Pair<D> masked(MaskOf<D> mask, const Pair<D>& v) {
  return {zero_unless(mask, v.x), zero_unless(mask, v.y)};
}

// The sum of c[i] x^i for `count` coefficients, and its derivative.
template <int kCount, class D>
LG_INLINE Pair<D> polynomial(const double* c, D x) {
  D value = D(c[kCount - 1]), slope = D(0.0);
  for (int i = kCount - 2; i >= 0; --i) {
    slope = fma(slope, x, value);
    value = fma(value, x, D(c[i]));
  }
  return {value, slope};
}

// The gradients of fx, fy, cx and cy, for a pixel f * image + c.
template <class D, class Add>
LG_INLINE void intrinsics_backward(const Pair<D>& image, const Pair<D>& v, const Add& add) {
  using namespace lens_parameter;
  add(kFx, image.x * v.x);
  add(kFy, image.y * v.y);
  add(kCx, v.x);
  add(kCy, v.y);
}

// X / Z and Y / Z; points behind the camera are replaced by a harmless one.
template <class D>
struct Normalized {
  D x, y, inverse;  // 1 / Z
  MaskOf<D> ahead;
};
template <class D>
LG_INLINE Normalized<D> normalized(const Triple<D>& p) {
  Normalized<D> n;
  n.ahead = p.z > D(0.0);
  n.inverse = D(1.0) / select(n.ahead, p.z, D(1.0));
  n.x = p.x * n.inverse;
  n.y = p.y * n.inverse;
  return n;
}

struct PerfectPinhole {
  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor& s, const Triple<D>& p) {
    using namespace lens_parameter;
    const double* k = s.parameters;
    const Normalized<D> n = normalized(p);
    return {masked<D>(n.ahead, Pair<D>{fma(n.x, D(k[kFx]), D(k[kCx])), fma(n.y, D(k[kFy]), D(k[kCy]))}), n.ahead};
  }
  template <class D>
  static LG_INLINE Jacobian<D> jacobian(const Sensor& s, const Triple<D>& p) {
    const Normalized<D> n = normalized(p);
    const D gx = D(s.parameters[lens_parameter::kFx]) * n.inverse,
            gy = D(s.parameters[lens_parameter::kFy]) * n.inverse;
    return masked<D>(n.ahead, Jacobian<D>{{gx, D(0.0), -gx * n.x}, {D(0.0), gy, -gy * n.y}});
  }
  template <class D, class Add>
  static LG_INLINE void parameters(const Sensor&, const Triple<D>& p, const Pair<D>& v, const Add& add) {
    const Normalized<D> n = normalized(p);
    intrinsics_backward(Pair<D>{n.x, n.y}, masked<D>(n.ahead, v), add);
  }
};

struct Orthographic {
  template <class D>
  static LG_INLINE OnFilm<D> project(const Sensor& s, const Triple<D>& p) {
    using namespace lens_parameter;
    const double* k = s.parameters;
    const auto ahead = p.z > D(0.0);
    return {masked<D>(ahead, Pair<D>{fma(p.x, D(k[kFx]), D(k[kCx])), fma(p.y, D(k[kFy]), D(k[kCy]))}), ahead};
  }
  template <class D>
  static LG_INLINE Jacobian<D> jacobian(const Sensor& s, const Triple<D>& p) {
    const D zero = D(0.0), fx = D(s.parameters[lens_parameter::kFx]), fy = D(s.parameters[lens_parameter::kFy]);
    return masked<D>(p.z > zero, Jacobian<D>{{fx, zero, zero}, {zero, fy, zero}});
  }
  template <class D, class Add>
  static LG_INLINE void parameters(const Sensor&, const Triple<D>& p, const Pair<D>& v, const Add& add) {
    intrinsics_backward(Pair<D>{p.x, p.y}, masked<D>(p.z > D(0.0), v), add);
  }
};

LG_END
