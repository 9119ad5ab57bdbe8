// Projection of a point in the camera's frame to pixels, its Jacobian (spec section 1.3) and its gradient (section
// 3.5). Templates on the number type.
#pragma once

#include "common/math/number.h"
#include "gaussians/math/lens.h"
#include "gaussians/params.h"

LG_BEGIN_ENGINE(gaussians)

// The properties of a view's model that are compile-time constants.
enum class Lens { pinhole, distorted, orthographic, fisheye };

inline Lens lens_of(const View& view) {
  if (view.model == Model::orthographic) return Lens::orthographic;
  if (view.model == Model::fisheye) return Lens::fisheye;
  return view.distorted ? Lens::distorted : Lens::pinhole;
}

// Whether d x / d Y and d y / d X may differ from 0.
constexpr bool is_skew(Lens lens) { return lens == Lens::distorted || lens == Lens::fisheye; }

template <class F>
struct Triple {
  F x, y, z;
};

template <class F>
struct Jacobian {
  Triple<F> x, y;  // d x and d y / d (X, Y, Z)
};

template <class F>
LG_INLINE F clamp(F a, float low, float high) {
  return min(max(a, F(low)), F(high));
}

// The pixel of a point; z > 0 except for orthographic views.
template <Lens kLens, class F>
LG_INLINE Pair<F> pixel_of(const View& view, const Triple<F>& p) {
  const F fx = F(view.fx), fy = F(view.fy), cx = F(view.cx), cy = F(view.cy);
  if constexpr (kLens == Lens::orthographic) {
    return {fma(fx, p.x, cx), fma(fy, p.y, cy)};
  } else if constexpr (kLens == Lens::fisheye) {
    const F kappa = equidistant(fma(p.x, p.x, p.y * p.y), p.z).kappa;
    return {fma(fx * p.x, kappa, cx), fma(fy * p.y, kappa, cy)};
  } else {
    const F inverse = F(1.0f) / p.z, u = p.x * inverse, v = p.y * inverse;
    if constexpr (kLens == Lens::distorted) {
      const Pair<F> d = distort(view.distortion, u, v);
      return {fma(fx, d.x, cx), fma(fy, d.y, cy)};
    } else {
      return {fma(fx, u, cx), fma(fy, v, cy)};
    }
  }
}

// Whether the lens shows a point. Points beyond the radius at which a distortion folds back are not visible.
template <Lens kLens, class F>
LG_INLINE auto is_in_view(const View& view, const Triple<F>& p) {
  if constexpr (kLens == Lens::distorted) {
    return fma(p.x, p.x, p.y * p.y) <= F(view.max_radius_squared) * p.z * p.z;
  } else {
    return p.z == p.z;
  }
}

template <Lens kLens, class F>
LG_INLINE Jacobian<F> jacobian_of(const View& view, const Triple<F>& p) {
  const F fx = F(view.fx), fy = F(view.fy), zero = F(0.0f);
  if constexpr (kLens == Lens::orthographic) {
    return {{fx, zero, zero}, {zero, fy, zero}};
  } else if constexpr (kLens == Lens::fisheye) {
    const F r2 = fma(p.x, p.x, p.y * p.y), w = F(1.0f) / fma(p.z, p.z, r2);
    const Equidistant<F> q = equidistant(r2, p.z);
    const F cross = p.x * p.y * q.d;
    return {{fx * fma(p.x * p.x, q.d, q.kappa), fx * cross, -fx * p.x * w},
            {fy * cross, fy * fma(p.y * p.y, q.d, q.kappa), -fy * p.y * w}};
  } else {
    const F inverse = F(1.0f) / p.z;
    const F u = clamp(p.x * inverse, view.min_u, view.max_u), v = clamp(p.y * inverse, view.min_v, view.max_v);
    const F gx = fx * inverse, gy = fy * inverse;
    if constexpr (kLens == Lens::distorted) {
      const DistortionJacobian<F> d = distortion_jacobian(view.distortion, u, v);
      return {{gx * d.xu, gx * d.cross, -gx * fma(d.xu, u, d.cross * v)},
              {gy * d.cross, gy * d.yv, -gy * fma(d.cross, u, d.yv * v)}};
    } else {
      return {{gx, zero, -gx * u}, {zero, gy, -gy * v}};
    }
  }
}

// Gradients of the inputs of `pixel_of` and `jacobian_of`.
template <class F>
struct CameraGradient {
  Triple<F> point;
  F fx, fy, cx, cy;
};

template <class F>
LG_INLINE F dot(const Triple<F>& a, const Triple<F>& b) {
  return fma(a.x, b.x, fma(a.y, b.y, a.z * b.z));
}

template <class F>
LG_INLINE CameraGradient<F> orthographic_backward(const View& view, const Triple<F>& p, const Pair<F>& v_pixel,
                                                  const Jacobian<F>& v_j) {
  CameraGradient<F> g;
  g.point = {F(view.fx) * v_pixel.x, F(view.fy) * v_pixel.y, F(0.0f)};
  g.fx = fma(p.x, v_pixel.x, v_j.x.x);
  g.fy = fma(p.y, v_pixel.y, v_j.y.y);
  g.cx = v_pixel.x;
  g.cy = v_pixel.y;
  return g;
}

// The Jacobian's derivatives are second derivatives of a map, and so symmetric in the variables.
template <class F>
LG_INLINE CameraGradient<F> fisheye_backward(const View& view, const Triple<F>& p, const Pair<F>& v_pixel,
                                             const Jacobian<F>& v_j, const Jacobian<F>& j) {
  const F fx = F(view.fx), fy = F(view.fy), two = F(2.0f), three = F(3.0f);
  const F x = p.x, y = p.y, z = p.z, r2 = fma(x, x, y * y), w = F(1.0f) / fma(z, z, r2), w2 = w * w;
  const Equidistant<F> q = equidistant(r2, z);
  const F xxx = fma(three * x, q.d, x * x * x * q.e), yyy = fma(three * y, q.d, y * y * y * q.e);
  const F xxy = fma(y, q.d, x * x * y * q.e), xyy = fma(x, q.d, x * y * y * q.e);
  const F xxz = (two * x * x * w - F(1.0f)) * w, yyz = (two * y * y * w - F(1.0f)) * w, xyz = two * x * y * w2;
  const F xzz = two * x * z * w2, yzz = two * y * z * w2;
  const Jacobian<F> a = {{fx * v_j.x.x, fx * v_j.x.y, fx * v_j.x.z}, {fy * v_j.y.x, fy * v_j.y.y, fy * v_j.y.z}};
  CameraGradient<F> g;
  g.point.x = fma(j.x.x, v_pixel.x, j.y.x * v_pixel.y) + dot(a.x, {xxx, xxy, xxz}) + dot(a.y, {xxy, xyy, xyz});
  g.point.y = fma(j.x.y, v_pixel.x, j.y.y * v_pixel.y) + dot(a.x, {xxy, xyy, xyz}) + dot(a.y, {xyy, yyy, yyz});
  g.point.z = fma(j.x.z, v_pixel.x, j.y.z * v_pixel.y) + dot(a.x, {xxz, xyz, xzz}) + dot(a.y, {xyz, yyz, yzz});
  g.fx = fma(x * q.kappa, v_pixel.x, dot(j.x, v_j.x) / fx);
  g.fy = fma(y * q.kappa, v_pixel.y, dot(j.y, v_j.y) / fy);
  g.cx = v_pixel.x;
  g.cy = v_pixel.y;
  return g;
}

// `fork`: as the depth fork differentiates a clamped Jacobian (spec section 6, item 3).
template <Lens kLens, class F>
LG_INLINE CameraGradient<F> pinhole_backward(const View& view, bool fork, const Triple<F>& p, const Pair<F>& v_pixel,
                                             const Jacobian<F>& v_j) {
  const F zero = F(0.0f), inverse = F(1.0f) / p.z, u = p.x * inverse, v = p.y * inverse;
  const F uc = clamp(u, view.min_u, view.max_u), vc = clamp(v, view.min_v, view.max_v);
  const auto free_u = uc == u, free_v = vc == v;
  const F fx = F(view.fx), fy = F(view.fy), gx = fx * inverse, gy = fy * inverse;
  // Through the Jacobian, to the clamped coordinates and to 1 / Z.
  F v_uc, v_vc, v_inverse, along_x, along_y;
  CameraGradient<F> g;
  Pair<F> v_uv;
  if constexpr (kLens == Lens::distorted) {
    const DistortionJacobian<F> d = distortion_jacobian(view.distortion, uc, vc);
    along_x = fma(d.xu, v_j.x.x, fma(d.cross, v_j.x.y, -fma(d.xu, uc, d.cross * vc) * v_j.x.z));
    along_y = fma(d.cross, v_j.y.x, fma(d.yv, v_j.y.y, -fma(d.cross, uc, d.yv * vc) * v_j.y.z));
    const DistortionJacobian<F> v_d = {
        gx * fma(-uc, v_j.x.z, v_j.x.x),
        gx * fma(-vc, v_j.x.z, v_j.x.y) + gy * fma(-uc, v_j.y.z, v_j.y.x),
        gy * fma(-vc, v_j.y.z, v_j.y.y),
    };
    const Pair<F> second = distortion_jacobian_backward(view.distortion, uc, vc, v_d);
    v_uc = second.x - fma(gx * d.xu, v_j.x.z, gy * d.cross * v_j.y.z);
    v_vc = second.y - fma(gx * d.cross, v_j.x.z, gy * d.yv * v_j.y.z);
    const DistortionJacobian<F> at = distortion_jacobian(view.distortion, u, v);
    v_uv = {fma(fx * at.xu, v_pixel.x, fy * at.cross * v_pixel.y),
            fma(fx * at.cross, v_pixel.x, fy * at.yv * v_pixel.y)};
    const Pair<F> image = distort(view.distortion, u, v);
    g.fx = image.x * v_pixel.x;
    g.fy = image.y * v_pixel.y;
  } else {
    along_x = fma(-uc, v_j.x.z, v_j.x.x);
    along_y = fma(-vc, v_j.y.z, v_j.y.y);
    v_uc = -gx * v_j.x.z;
    v_vc = -gy * v_j.y.z;
    v_uv = {fx * v_pixel.x, fy * v_pixel.y};
    g.fx = u * v_pixel.x;
    g.fy = v * v_pixel.y;
  }
  v_inverse = fma(fx, along_x, fy * along_y);
  // The limits depend on the intrinsics: fx times a limit is a constant minus cx, or for Inria's symmetric limits a
  // constant.
  const F held_u = select(free_u, zero, v_uc) / fx, held_v = select(free_v, zero, v_vc) / fy;
  g.fx = g.fx + inverse * along_x - uc * held_u;
  g.fy = g.fy + inverse * along_y - vc * held_v;
  g.cx = view.projected ? v_pixel.x : v_pixel.x - held_u;
  g.cy = view.projected ? v_pixel.y : v_pixel.y - held_v;
  const F to_u = v_uv.x + select(free_u, v_uc, zero), to_v = v_uv.y + select(free_v, v_vc, zero);
  g.point.x = inverse * to_u;
  g.point.y = inverse * to_v;
  F to_z = fma(u, to_u, fma(v, to_v, inverse * v_inverse));
  if (fork) to_z = to_z + fma(held_u * fx, uc, held_v * fy * vc);
  g.point.z = -inverse * to_z;
  return g;
}

template <Lens kLens, class F>
LG_INLINE CameraGradient<F> camera_backward(const View& view, bool fork, const Triple<F>& p, const Pair<F>& v_pixel,
                                            const Jacobian<F>& v_j, const Jacobian<F>& j) {
  if constexpr (kLens == Lens::orthographic) {
    return orthographic_backward(view, p, v_pixel, v_j);
  } else if constexpr (kLens == Lens::fisheye) {
    return fisheye_backward(view, p, v_pixel, v_j, j);
  } else {
    return pinhole_backward<kLens>(view, fork, p, v_pixel, v_j);
  }
}

LG_END
