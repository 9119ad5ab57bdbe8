// The results of a row from its samples: the centre, and sweeps toward the adjacent time steps.
#pragma once

#include "meshes/math/cost.h"
#include "meshes/math/distance.h"
#include "meshes/params.h"

LG_BEGIN_ENGINE(meshes)

// Spheres with larger numbers are ignored: their squares would come near the boxes of missing children.
inline constexpr float kLargest = 1e15f;

// A sphere given by the caller; disabled if its radius is negative, or a number is not finite or too large.
struct Sphere {
  Vec<float> centre;
  float radius;

  LG_INLINE bool finite() const { return abs(centre.x) + abs(centre.y) + abs(centre.z) + abs(radius) < kLargest; }
  LG_INLINE bool on() const { return radius >= 0.0f && finite(); }
};

LG_INLINE Sphere sphere_at(const float* rows, int64_t row) {
  const float* s = rows + 4 * row;
  return {{s[0], s[1], s[2]}, s[3]};
}

// The place of a sample, at a fraction of the way from the centre to the neighbour.
LG_INLINE Vec<float> sample_at(Vec<float> centre, float fraction, Vec<float> neighbour) {
  return along(centre, fraction, neighbour - centre);
}

LG_INLINE Vec<float> to_object(const Obstacle& o, Vec<float> p) {
  return rotated(o.rotation, p) + Vec<float>{o.translation[0], o.translation[1], o.translation[2]};
}
LG_INLINE Vec<float> to_world(const Obstacle& o, Vec<float> p) {
  return rotated_back(o.rotation, p - Vec<float>{o.translation[0], o.translation[1], o.translation[2]});
}

// Position of a sample: at the centre, or toward the time step before or after.
enum class Toward { none, before, after };

// Cost of a sample near an obstacle, and its gradient.
struct Sample {
  Cost<float> cost;
  Vec<float> gradient;  // d cost / d place, in the world
  float fraction;
  Toward toward;
};

struct RowSums {
  float cost;
  float jacobian[kJacobianFloats];

  LG_INLINE void put(int first, float scale, Vec<float> g) {
    jacobian[first] = fma(scale, g.x, jacobian[first]);
    jacobian[first + 1] = fma(scale, g.y, jacobian[first + 1]);
    jacobian[first + 2] = fma(scale, g.z, jacobian[first + 2]);
  }
  LG_INLINE void add(const Sample& sample) {
    cost += sample.cost.value;
    put(3, 1.0f - sample.fraction, sample.gradient);
    if (sample.toward == Toward::before) put(0, sample.fraction, sample.gradient);
    if (sample.toward == Toward::after) put(6, sample.fraction, sample.gradient);
    jacobian[9] += sample.cost.slope;
  }
  // If the sample's cost is the largest so far, replaces the row's results by it and returns true.
  LG_INLINE bool add_maximum(const Sample& sample) {
    if (!(sample.cost.value > cost)) return false;
    *this = RowSums{};
    add(sample);
    return true;
  }
  // Adds as cuRobo does: the whole gradient goes to the centre (spec section 6.2).
  LG_INLINE void add_curobo(const Sample& sample) {
    cost += sample.cost.value;
    put(3, 1.0f, sample.gradient);
  }
};

// The sample at distance `at` from obstacle `o`; costs of depths below 0 are 0.
LG_INLINE Sample sample_of(const Obstacle& o, Distance<float> at, float inflated, float activation, float fraction,
                           Toward toward) {
  const Cost<float> cost = cost_of(inflated - at.value, activation);
  return {cost, rotated_back(o.rotation, -cost.slope * at.gradient), fraction, toward};
}

// Exact: the distance of the inflated sphere from an obstacle that was searched within `radius`, or a lower bound if
// the obstacle was not found. The samples of a sweep do not depend on the bound if it is at least half the length of
// the half segment.
LG_INLINE float clearance_of(bool found, float distance, float radius, float inflated) {
  return (found ? distance : radius) - inflated;
}

LG_END
