// The cost of a sphere near an obstacle (spec section 4), and the speed metric of a sweep. N is float or a pack.
#pragma once

#include "meshes/math/vector.h"

LG_BEGIN_ENGINE(meshes)

template <class N>
struct Cost {
  N value, slope;  // d value / d depth
};

// The cost of the depth d = radius + activation - distance: 0 below 0, d^2 / (2 activation) up to the activation
// distance, then d - activation / 2.
template <class N>
LG_INLINE Cost<N> cost_of(N depth, N activation) {
  const N zero = N(0.0f), one = N(1.0f), half = N(0.5f);
  const auto curved = depth <= activation;
  const N share = depth * quick_inverse(max(activation, N(1e-30f)));
  const auto on = depth > zero;
  return {select(on, select(curved, half * depth * share, fnma(half, activation, depth)), zero),
          select(on, select(curved, share, one), zero)};
}

// Below this speed, in m/s, costs are not scaled (spec section 6.3).
inline constexpr float kLeastSpeed = 1e-3f;

// The speed of a centre, from the centres a time step dt before and after it, and its direction.
struct Speed {
  float value;
  Vec<float> direction;
};
LG_INLINE Speed speed_of(Vec<float> before, Vec<float> after, float dt) {
  const Vec<float> way = after - before;
  const float length = sqrt(dot(way, way));
  const float inverse = length > 0.0f ? 1.0f / length : 0.0f;
  return {length / (2.0f * dt), inverse * way};
}

// Exact: multiplies the cost by the speed, and updates `jacobian` (see params.h).
LG_INLINE void scale_by_speed(Vec<float> before, Vec<float> after, float dt, float& cost, float* jacobian) {
  const Speed speed = speed_of(before, after, dt);
  if (!(speed.value > kLeastSpeed)) return;
  const float part = cost / (2.0f * dt);
  for (int i = 0; i < 10; ++i) jacobian[i] *= speed.value;
  const float way[3] = {speed.direction.x, speed.direction.y, speed.direction.z};
  for (int i = 0; i < 3; ++i) {
    jacobian[i] = fnma(part, way[i], jacobian[i]);
    jacobian[6 + i] = fma(part, way[i], jacobian[6 + i]);
  }
  cost *= speed.value;
}

// Scales as cuRobo does (spec section 6.3): the gradient of an arc-length integral, for the own centre only.
LG_INLINE void scale_by_speed_curobo(Vec<float> before, Vec<float> own, Vec<float> after, float dt, float& cost,
                                     float* gradient) {
  const Speed speed = speed_of(before, after, dt);
  if (!(speed.value > kLeastSpeed)) return;
  const float square = speed.value * speed.value, inverse = 1.0f / (dt * dt);
  const Vec<float> bend = inverse * (before + after - 2.0f * own);
  Vec<float> g = {gradient[0], gradient[1], gradient[2]};
  g = along(g, -cost / square, bend);
  g = along(g, -dot(g, speed.direction), speed.direction);
  gradient[0] = speed.value * g.x;
  gradient[1] = speed.value * g.y;
  gradient[2] = speed.value * g.z;
  cost *= speed.value;
}

LG_END
