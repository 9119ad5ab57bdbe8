// Replaces a Gaussian by n coincident copies: opacities and scales for which together they render like the original, by
// equation 9 of "3D Gaussian splatting as Markov chain Monte Carlo" (Kheradmand et al., NeurIPS 2024). In double, since
// the sum alternates, and without library functions, so that every machine gets the same result.
#pragma once

#include "common/math/exp.h"
#include "common/math/trig.h"
#include "density/params.h"

LG_BEGIN_ENGINE(density)

// Larger numbers of copies are clamped to this, since the sum would cancel too much.
inline constexpr int kMostShares = 51;
// Opacities are clamped to 1 - 2e-9, for the same reason.
inline constexpr double kLargestLogit = 20.0;

// -log(1 - opacity).
LG_INLINE double depth_of_logit(double logit) {
  const double x = logit > kLargestLogit ? kLargestLogit : logit;
  if (x > 0.0) return x + log64(1.0 + exp64(-x));
  // log(1 + e) is e where e is small.
  const double e = exp64(x);
  return e < 1e-5 ? e - 0.5 * e * e : log64(1.0 + e);
}

LG_INLINE double opacity_of_depth(double depth) {
  return depth < 1e-5 ? depth - 0.5 * depth * depth : 1.0 - exp64(-depth);
}

// The inverse of depth_of_logit: log(opacity / (1 - opacity)) = log(exp(depth) - 1).
LG_INLINE double logit_of_depth(double depth) {
  return log64(depth < 1e-5 ? depth + 0.5 * depth * depth : exp64(depth) - 1.0);
}

// The opacity and the change of scale of a share.
struct Share {
  double logit;      // The new logit of the opacity.
  double log_scale;  // Added to the logarithms of the scales.
};

// The share of each of n > 0 Gaussians that replace one. Together they have the transparency of the whole: (1 -
// share)^n = 1 - whole. They also have its integral of 1 - (1 - share exp(-x^2 / 2 s^2))^n along a line through the
// centre, which gives the scale s: the sum over i and k in equation 9 equals the sum over k of binomial(n, k) (-1)^(k +
// 1) share^k / sqrt(k).
LG_INLINE Share share_of(float logit, int n) {
  const int shares = n < kMostShares ? n : kMostShares;
  const double whole_depth = depth_of_logit(static_cast<double>(logit)), depth = whole_depth / shares;
  const double share = opacity_of_depth(depth), whole = opacity_of_depth(whole_depth);
  double term = -1.0, sum = 0.0;
  for (int k = 1; k <= shares; ++k) {
    term = -term * share * (shares - k + 1) / k;
    sum += term / sqrt64(static_cast<double>(k));
  }
  return {logit_of_depth(depth), log64(whole / sum)};
}

// Turns a row into the first of its shares.
LG_INLINE void share_row(const Shared& shared, int64_t row) {
  const Share share = share_of(shared.opacities[row], shared.shares[row] + 1);
  const float logit = static_cast<float>(share.logit), raised = logit < shared.low ? shared.low : logit;
  shared.opacities[row] = raised > shared.high ? shared.high : raised;
  float* scale = shared.scales + 3 * row;
  for (int k = 0; k < 3; ++k) scale[k] = static_cast<float>(static_cast<double>(scale[k]) + share.log_scale);
}

LG_END
