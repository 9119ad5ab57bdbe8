// Projection of sixteen Gaussians to a sensor, and its gradients, in packs of doubles.
#pragma once

#include "common/cpu/pack64.h"
#include "gaussians/math/sensor/project.h"

LG_BEGIN_ENGINE(gaussians)

// Part number `part` of sixteen values, in doubles.
LG_INLINE Triple<Pack64> part_of(const Triple<Pack>& v, int part) {
  return {widen(v.x, part), widen(v.y, part), widen(v.z, part)};
}
LG_INLINE Gaussian<Pack64> gaussian_part(const Gaussian<Pack>& g, int part) {
  Gaussian<Pack64> to;
  to.mean = part_of(g.mean, part);
  to.quaternion = {widen(g.quaternion.w, part), widen(g.quaternion.x, part), widen(g.quaternion.y, part),
                   widen(g.quaternion.z, part)};
  to.scale = part_of(g.scale, part);
  to.opacity = widen(g.opacity, part);
  return to;
}

LG_INLINE void put(const Triple<Pack64>& v, int part, Triple<Pack>& to) {
  narrow(v.x, part, to.x);
  narrow(v.y, part, to.y);
  narrow(v.z, part, to.z);
}
LG_INLINE void put(const GaussianGradient<Pack64>& g, int part, GaussianGradient<Pack>& to) {
  put(g.mean, part, to.mean);
  put(g.scale, part, to.scale);
  put(g.translation, part, to.translation);
  put(g.rotation.x, part, to.rotation.x);
  put(g.rotation.y, part, to.rotation.y);
  put(g.rotation.z, part, to.rotation.z);
  narrow(g.quaternion.w, part, to.quaternion.w);
  narrow(g.quaternion.x, part, to.quaternion.x);
  narrow(g.quaternion.y, part, to.quaternion.y);
  narrow(g.quaternion.z, part, to.quaternion.z);
  narrow(g.opacity, part, to.opacity);
  narrow(g.mean2d.x, part, to.mean2d.x);
  narrow(g.mean2d.y, part, to.mean2d.y);
}

inline constexpr unsigned kPartBits = (1u << kLanes64) - 1u;

// The sums over the Gaussians of a slice for its gradients and those of the sensor.
struct SensorSums {
  double* sensor;  // [kSensorSums]; null if not requested.
  double* slice;   // [kSliceMotionSums]
};
// Sums of a part of the Gaussians.
struct PartSums {
  SensorSums to;
  MaskPack64 mask;
  LG_INLINE bool wanted() const { return to.sensor != nullptr; }
  LG_INLINE void operator()(int index, Pack64 value) const {
    (index < kRaySums ? to.sensor[index] : to.slice[index - kRaySums]) += sum(zero_unless(mask, value));
  }
};

// Projects the Gaussians; `used`: the lanes that hold a Gaussian, as bits.
Projected<Pack> project_sensor(const SensorPlace& at, const Gaussian<Pack>& gaussian, unsigned used);
// Gradients of the Gaussians of `mask`, which must be visible.
GaussianGradient<Pack> project_sensor_backward(const SensorPlace& at, const Gaussian<Pack>& gaussian,
                                               const PixelSums<Pack>& sums, Pack v_inverse_depth, unsigned mask,
                                               const SensorSums& view_sums);

LG_END
