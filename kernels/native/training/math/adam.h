// Adam as in torch.optim.Adam, with the derivative of the parameter's activation.
#pragma once

#include "common/math/exp.h"
#include "training/params.h"

LG_BEGIN_ENGINE(training)

template <Activation kActivation, class F>
LG_INLINE F activate(F raw) {
  if constexpr (kActivation == Activation::exp) return exp_within(raw);
  if constexpr (kActivation == Activation::sigmoid) return F(1.0f) / (F(1.0f) + exp_within(-raw));
  return raw;
}

// The gradient with respect to the raw parameter, from the gradient with respect to the value.
template <Activation kActivation, class F>
LG_INLINE F raw_gradient(F gradient, F raw) {
  if constexpr (kActivation == Activation::identity) return gradient;
  const F value = activate<kActivation>(raw);
  if constexpr (kActivation == Activation::exp) return gradient * value;
  return gradient * (F(1.0f) - value) * value;
}

// Whether a number is neither NaN nor infinite.
template <class F>
LG_INLINE auto is_finite(F a) {
  return abs(a) <= F(3.40282347e38f);
}

template <class F>
LG_INLINE void adam_moments(const AdamSettings& s, F gradient, F& first, F& second) {
  first = fma(F(s.first_weight), gradient - first, first);
  second = fma(F(s.second_weight) * gradient, gradient, second * F(s.second_decay));
}

// The divisor of the first moment, from the root of the second.
template <class F>
LG_INLINE F adam_divisor(const AdamSettings& s, F root) {
  return fma(root, F(s.root_correction), F(s.epsilon));
}

template <class F>
LG_INLINE void adam_update(const AdamSettings& s, F step_size, F gradient, F& raw, F& first, F& second) {
  adam_moments(s, gradient, first, second);
  raw = fnma(step_size, first / adam_divisor(s, sqrt(second)), raw);
}

LG_END
