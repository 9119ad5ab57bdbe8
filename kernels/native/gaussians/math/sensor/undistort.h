// The inverse of OpenCV's distortion (sensors spec section 4): from a place in the image to the point that it shows, by
// Newton's method in the plane, starting at the inverse of the radial part or at the solution of a nearby pixel.
#pragma once

#include <algorithm>

#include "gaussians/math/sensor/opencv.h"

LG_BEGIN_ENGINE(gaussians)

template <class D>
LG_INLINE MaskOf<D> everywhere(D x) {
  return x <= x;
}

// Solves f(x) = y for a function that rises from 0 to `top`, with Newton's steps, and bisection if a step leaves the
// bracket. The error after a step is about the square of the step.
template <class D, class Function>
LG_INLINE D rising_inverse(const Function& f, D y, D x, double top) {
  D low = D(0.0), high = D(top);
  for (int i = 0; i < 60; ++i) {
    x = select((x >= low) & (x <= high), x, D(0.5) * (low + high));
    const Pair<D> at = f(x);
    const D error = at.x - y, next = x - error / at.y;
    low = select(error <= D(0.0), x, low);
    high = select(error >= D(0.0), x, high);
    const auto moves = abs(next - x) > D(1e-9) * (abs(x) + D(1.0));
    x = next;
    if (!any(moves)) break;
  }
  return min(max(x, D(0.0)), D(top));
}

// The point (X/Z, Y/Z) that OpenCV's lens shows at a place of the image, and the derivatives there.
template <class D>
struct Undistorted {
  Pair<D> at;
  OpenCVPinhole::Slopes<D> inverse;  // Derivatives of `at` with respect to the image.
  MaskOf<D> valid;
};

template <class D>
LG_INLINE Pair<D> product(const OpenCVPinhole::Slopes<D>& j, const Pair<D>& v) {
  return {fma(j.xx, v.x, j.xy * v.y), fma(j.yx, v.x, j.yy * v.y)};
}
template <class D>
LG_INLINE Pair<D> sum(const Pair<D>& a, const Pair<D>& b) {
  return {a.x + b.x, a.y + b.y};
}
template <class D>
LG_INLINE Pair<D> difference(const Pair<D>& a, const Pair<D>& b) {
  return {a.x - b.x, a.y - b.y};
}

// A step of Newton's method towards the image.
template <class D>
struct UndistortingStep {
  Pair<D> by;
  OpenCVPinhole::Slopes<D> inverse;
  MaskOf<D> regular;

  LG_INLINE UndistortingStep(const Sensor& s, const Pair<D>& image, const Pair<D>& x) {
    const auto bent = OpenCVPinhole::bent(s, x.x, x.y);
    const auto j = OpenCVPinhole::slopes(s, bent);
    const D det = fma(j.xx, j.yy, -(j.xy * j.yx)), tiny = D(1e-6);
    regular = (bent.radial.factor > D(0.0)) & (abs(det) >= tiny);
    const D over = D(1.0) / select(abs(det) >= tiny, det, D(1.0));
    inverse = {j.yy * over, -j.xy * over, -j.yx * over, j.xx * over};
    by = product(inverse, difference(image, bent.image));
  }
  LG_INLINE MaskOf<D> is_below(double length) const { return (abs(by.x) < D(length)) & (abs(by.y) < D(length)); }
};

// The radius of the image up to which a monotone lens shows points.
LG_INLINE double widest_point(const Sensor& s) { return std::min(s.limit * (1.0 - 1e-9), 1e3); }
LG_INLINE double widest_image(const Sensor& s) {
  const double top = widest_point(s);
  return OpenCVPinhole::radial(s, top * top).factor * top;
}
template <class D>
LG_INLINE Undistorted<D> undistorted(const Sensor& s, const Pair<D>& x, const OpenCVPinhole::Slopes<D>& inverse,
                                     MaskOf<D> done) {
  const D limit = D(std::min(s.limit, 1e18));
  const MaskOf<D> valid = done & (!s.monotone ? everywhere(x.x) : fma(x.x, x.x, x.y * x.y) < limit * limit);
  return {{zero_unless(valid, x.x), zero_unless(valid, x.y)}, inverse, valid};
}

template <class D>
LG_CALLED Undistorted<D> undistort(const Sensor& s, const Pair<D>& image) {
  Pair<D> x = image;
  auto alive = everywhere(image.x);
  int steps = 5;
  if (s.monotone) {
    // Newton's method begins at the solution for the radial part alone.
    const auto radial = [&](D r) {
      const auto f = OpenCVPinhole::radial(s, r * r);
      return Pair<D>{f.factor * r, fma(D(2.0) * f.slope * r, r, f.factor)};
    };
    const D distance = max(sqrt(fma(image.x, image.x, image.y * image.y)), D(1e-150));
    alive = D(widest_image(s)) > distance;
    const D r = rising_inverse(radial, zero_unless(alive, distance), distance, widest_point(s));
    x = {image.x * r / distance, image.y * r / distance};
    steps = 20;
  }
  auto done = x.x < x.x;
  for (int i = 0; i < steps; ++i) {
    const UndistortingStep<D> step(s, image, x);
    alive = alive & step.regular;
    const auto moves = alive & !done;
    x = {select(moves, x.x + step.by.x, x.x), select(moves, x.y + step.by.y, x.y)};
    done = done | (alive & step.is_below(1e-6));
    if (!any(alive & !done)) break;
  }
  // After one more step only rounding errors are left.
  const UndistortingStep<D> step(s, image, x);
  x = {select(done, x.x + step.by.x, x.x), select(done, x.y + step.by.y, x.y)};
  return undistorted(s, x, step.inverse, done);
}

// The start of a search: the solution at a place in the image a few pixels away.
template <class D>
struct Neighbour {
  bool known = false;
  double widest;
  Pair<D> image, at;
  OpenCVPinhole::Slopes<D> inverse;
};

// Undistorts in two steps from a neighbour. Searches from scratch if these are not enough, if they leave the lens's
// domain, as may happen near its limit, and for lenses that have points with several solutions.
template <class D>
LG_CALLED Undistorted<D> undistort_beside(const Sensor& s, const Pair<D>& image, Neighbour<D>& near) {
  const auto begun_anew = [&] {
    const Undistorted<D> found = undistort(s, image);
    near = {s.monotone != 0, widest_image(s), image, found.at, found.inverse};
    return found;
  };
  if (!near.known) return begun_anew();
  Pair<D> x = sum(near.at, product(near.inverse, difference(image, near.image)));
  const auto shown = fma(image.x, image.x, image.y * image.y) < D(near.widest * near.widest);
  const UndistortingStep<D> first(s, image, x);
  x = sum(x, first.by);
  const UndistortingStep<D> second(s, image, x);
  x = sum(x, second.by);
  const auto& j = second.inverse;
  const D limit = D(std::min(s.limit, 1e18));
  const auto done = first.regular & first.is_below(1e-3) & second.regular & second.is_below(1e-8) &
                    (fma(j.xx, j.yy, -(j.xy * j.yx)) > D(0.0)) & (fma(x.x, x.x, x.y * x.y) < limit * limit);
  if (any(shown & !done)) return begun_anew();
  near.image = image;
  near.at = x;
  near.inverse = second.inverse;
  return undistorted(s, x, second.inverse, shown);
}

LG_END
