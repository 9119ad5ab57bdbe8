// Structural similarity (Wang et al., "Image Quality Assessment", 2004) of an image x and its target y, in terms of
// their difference, so that variances vanish with the difference, and their rounding errors too.
#pragma once

#include "common/math/number.h"

LG_BEGIN_ENGINE(training)

// The window is a Gaussian of 1.5 pixels, cut off 5 pixels from its centre.
inline constexpr int kRadius = 5;
inline constexpr int kTaps = 2 * kRadius + 1;

// Weights at distances of 0 to 5 pixels. Over both sides they sum to 1 within 2e-8, as is needed because squares of
// means are subtracted from means of squares.
LG_INLINE constexpr float window_weight(int distance) {
  constexpr float kWeights[kRadius + 1] = {0.26601171493530273f,  0.21300554275512695f,   0.10936068743467331f,
                                           0.036000773310661316f, 0.0075987582094967365f, 0.001028380123898387f};
  return kWeights[distance];
}

// Means over a window.
template <class F>
struct Moments {
  F x, difference;  // Windowed x and x - y.
  F squares;        // Windowed x^2 + y^2.
  F error;          // Windowed (x - y)^2.
};

// 1 - similarity. Its gradient with respect to x at a pixel is the weighted sum over the windows that contain the pixel
// of by_mean + x by_squares + (x - y) by_error.
template <class F>
struct Dissimilarity {
  F value, by_mean, by_squares, by_error;
};

// The similarity is (1 - p) (1 - q): p measures the difference of the means, q the difference of the deviations from
// the means. `inverse(a)` is 1 / a.
template <class F, class Inverse>
LG_INLINE Dissimilarity<F> dissimilarity(const Moments<F>& m, const Inverse& inverse) {
  const F c1(1e-4f), c2(9e-4f), one(1.0f), two(2.0f);
  const F y = m.x - m.difference;
  const F per_mean = inverse(fma(m.x, m.x, y * y) + c1);
  const F per_variance = inverse(fnma(m.x, m.x, fnma(y, y, m.squares)) + c2);
  const F p = m.difference * m.difference * per_mean, q = fnma(m.difference, m.difference, m.error) * per_variance;
  const F error = two * (one - p) * per_variance, mean = two * (one - q) * per_mean;
  const F by_mean = fnma(error, fnma(q, m.x, m.difference), mean * fnma(p, m.x, m.difference));
  return {fma(q, one - p, p), by_mean, -(q * error), error};
}

LG_END
