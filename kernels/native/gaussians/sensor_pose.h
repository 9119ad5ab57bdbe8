// Poses of sensors: rotations, motions during the exposure, and the gradients of both ends. A pose has a rotation, row
// by row, and a translation, world to camera.
#pragma once

#include <cmath>
#include <cstddef>

#include "common/math/number.h"
#include "gaussians/params.h"

namespace lumigrad::gaussians {

// The numbers of a sensor that follow from its poses, laid out as in Sensor.
struct SensorPose {
  double rotation[9], translation[3], axis[3], angle, motion[3];
};
static_assert(offsetof(Sensor, behind) == offsetof(Sensor, rotation) + sizeof(SensorPose));

// The gradients at the start and at the end of the exposure: of the translation, of a turn about the camera, and of the
// turn of a motion exp(xi) that multiplies the pose from the left.
struct EndGradient {
  double translation[3], turn[3], motion_turn[3];
};

// Rotations that differ by less are turned by this angle, so that no derivative divides by 0.
inline constexpr double kLeastAngle = 1e-12;

LG_INLINE void cross_product(const double* a, const double* b, double* to) {
  for (int i = 0; i < 3; ++i) {
    const int j = (i + 1) % 3, k = (i + 2) % 3;
    to[i] = a[j] * b[k] - a[k] * b[j];
  }
}

LG_INLINE void rotate(const double* matrix, const double* v, double* to) {
  for (int i = 0; i < 3; ++i) to[i] = matrix[3 * i] * v[0] + matrix[3 * i + 1] * v[1] + matrix[3 * i + 2] * v[2];
}

LG_INLINE double length_of(const double* v) { return std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]); }

// The rotation nearest to a matrix that is orthonormal to 1e-4.
LG_INLINE void nearest_rotation(const double* from, double* to) {
  for (int i = 0; i < 9; ++i) to[i] = from[i];
  // Newton's method for the polar decomposition: each step squares the error.
  for (int step = 0; step < 3; ++step) {
    double cofactors[9];
    for (int i = 0; i < 3; ++i) cross_product(to + (i + 1) % 3 * 3, to + (i + 2) % 3 * 3, cofactors + 3 * i);
    const double determinant = to[0] * cofactors[0] + to[1] * cofactors[1] + to[2] * cofactors[2];
    for (int i = 0; i < 9; ++i) to[i] = 0.5 * (to[i] + cofactors[i] / determinant);
  }
}

// The axis, of length 1, and the angle in [0, pi] of the rotation end * start^T.
LG_INLINE double turn_between(const double* start, const double* end, double* axis) {
  double r[9];
  for (int i = 0; i < 3; ++i) rotate(start, end + 3 * i, r + 3 * i);
  const double twice_sine[3] = {r[7] - r[5], r[2] - r[6], r[3] - r[1]};
  const double length = length_of(twice_sine), angle = std::atan2(length, r[0] + r[4] + r[8] - 1.0);
  if (length > 1e-6 * (1.0 + angle) || (angle < 1.0 && length > 0.0)) {
    for (int i = 0; i < 3; ++i) axis[i] = twice_sine[i] / length;
  } else if (angle < 1.0) {
    axis[0] = 1.0;
    axis[1] = axis[2] = 0.0;
  } else {
    // Half a turn: the axis is the column of largest length of (R + 1) / 2.
    int largest = 0;
    for (int i = 1; i < 3; ++i) largest = r[4 * i] > r[4 * largest] ? i : largest;
    for (int i = 0; i < 3; ++i) axis[i] = 0.5 * (r[3 * i + largest] + (i == largest ? 1.0 : 0.0));
    const double size = length_of(axis);
    for (int i = 0; i < 3; ++i) axis[i] /= size;
  }
  return angle;
}

// The numbers that follow from poses [12] with exact rotations. Without a rolling shutter, the end does not count.
LG_INLINE SensorPose sensor_pose(const double* start, const double* end, bool rolling) {
  SensorPose pose{};
  for (int i = 0; i < 9; ++i) pose.rotation[i] = start[i];
  for (int i = 0; i < 3; ++i) pose.translation[i] = start[9 + i];
  pose.axis[0] = 1.0;
  if (!rolling) return pose;
  const double angle = turn_between(start, end, pose.axis);
  pose.angle = angle > kLeastAngle ? angle : kLeastAngle;
  for (int i = 0; i < 3; ++i) pose.motion[i] = end[9 + i] - start[9 + i];
  return pose;
}

// The gradients at both ends, given the gradient of the eye, the mean of the camera's positions, and the last
// kMotionSums of a view's sums.
LG_INLINE void sensor_pose_gradient(const double* start, const double* end, bool rolling, const double* d_eye,
                                    const double* sums, EndGradient* found) {
  const double *spin = sums, *carried = sums + 3, *push = sums + 6, *timed = sums + 9;
  double axis[3], across[3], twice[3];
  const double angle = rolling ? turn_between(start, end, axis) : 0.0;
  for (int i = 0; i < 3; ++i) {
    found[0].turn[i] = spin[i] - carried[i];
    found[0].translation[i] = push[i] - timed[i];
    found[1].turn[i] = carried[i];
    found[1].translation[i] = timed[i];
  }
  if (rolling) {
    // Rodrigues' formula.
    cross_product(axis, carried, across);
    cross_product(axis, across, twice);
    for (int i = 0; i < 3; ++i) found[1].turn[i] += std::sin(angle) * across[i] + (1.0 - std::cos(angle)) * twice[i];
  }
  for (int k = 0; k < 2; ++k) {
    const double *pose = k == 0 ? start : end, share = rolling ? 0.5 : (k == 0 ? 1.0 : 0.0);
    double eye[3], moved[3], along[3];
    rotate(pose, d_eye, eye);
    cross_product(pose + 9, eye, moved);
    for (int i = 0; i < 3; ++i) {
      found[k].translation[i] -= share * eye[i];
      found[k].turn[i] += share * moved[i];
    }
    cross_product(pose + 9, found[k].translation, along);
    for (int i = 0; i < 3; ++i) found[k].motion_turn[i] = found[k].turn[i] + along[i];
  }
}

}  // namespace lumigrad::gaussians
