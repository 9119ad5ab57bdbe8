// World-to-camera poses that are refined: a rotation, row by row, and a translation.
#pragma once

#include <cmath>

#include "common/math/number.h"
#include "gaussians/params.h"
#include "gaussians/sensor_pose.h"

namespace lumigrad::resident {

inline constexpr int kPose = 12;
// A motion exp(xi) of a camera: xi is a translation, scene units, and a turn, radians.
inline constexpr int kMotion = 6;

// Converts the pose for the Gaussians' engine.
LG_INLINE gaussians::Pose drawn_pose(const double* pose) {
  gaussians::Pose drawn{};
  const double *r = pose, *t = pose + 9;
  for (int i = 0; i < 9; ++i) drawn.rotation[i] = static_cast<float>(r[i]);
  for (int i = 0; i < 3; ++i) {
    drawn.translation[i] = static_cast<float>(t[i]);
    drawn.eye[i] = static_cast<float>(0.0 - (r[i] * t[0] + r[3 + i] * t[1] + r[6 + i] * t[2]));
  }
  return drawn;
}

// The gradient of the motion at 0 that multiplies the pose from the left, given the sums of a backward pass
// (kPoseSums).
LG_INLINE void motion_gradient(const double* sums, const double* pose, float* gradient) {
  const double *r = pose, *t = pose + 9, *eye = sums + 12;
  double turn[3][3], along[3];
  for (int i = 0; i < 3; ++i) {
    along[i] = sums[9 + i] - (r[3 * i] * eye[0] + r[3 * i + 1] * eye[1] + r[3 * i + 2] * eye[2]);
  }
  for (int i = 0; i < 3; ++i) {
    double row[3];
    for (int k = 0; k < 3; ++k) row[k] = sums[3 * i + k] - t[i] * eye[k];
    for (int j = 0; j < 3; ++j) {
      turn[i][j] = row[0] * r[3 * j] + row[1] * r[3 * j + 1] + row[2] * r[3 * j + 2] + along[i] * t[j];
    }
  }
  for (int i = 0; i < 3; ++i) gradient[i] = static_cast<float>(along[i]);
  gradient[3] = static_cast<float>(turn[2][1] - turn[1][2]);
  gradient[4] = static_cast<float>(turn[0][2] - turn[2][0]);
  gradient[5] = static_cast<float>(turn[1][0] - turn[0][1]);
}

// Converts a sensor's poses for the Gaussians' engine. Without a rolling shutter the end does not count.
LG_INLINE void draw_sensor(const double* start, const double* end, bool rolling, gaussians::SensorPose* sensor,
                           gaussians::Pose* drawn) {
  double poses[2][kPose], eye[3] = {};
  for (int k = 0; k < 2; ++k) {
    const double* from = k == 1 && rolling ? end : start;
    gaussians::nearest_rotation(from, poses[k]);
    const double *r = poses[k], *t = poses[k] + 9;
    for (int i = 0; i < 3; ++i) poses[k][9 + i] = from[9 + i];
    for (int i = 0; i < 3; ++i) eye[i] += 0.0 - (r[i] * t[0] + r[3 + i] * t[1] + r[6 + i] * t[2]);
  }
  *sensor = gaussians::sensor_pose(poses[0], poses[1], rolling);
  for (int i = 0; i < 9; ++i) drawn->rotation[i] = static_cast<float>(poses[0][i] + 0.0);
  for (int i = 0; i < 3; ++i) {
    drawn->translation[i] = static_cast<float>(poses[0][9 + i] + 0.0);
    drawn->eye[i] = static_cast<float>(0.5 * eye[i] + 0.0);
  }
}

// The gradients of the motions at 0 of both ends, given the sums of a backward pass (kPoseSums and kSensorSums).
// Without `to_end`, the start's motion moves both ends; without `to_start` only the end moves.
LG_INLINE void sensor_motion_gradients(const double* pose_sums, const double* sensor_sums, const double* start,
                                       const double* end, bool rolling, float* to_start, float* to_end) {
  double poses[2][kPose], d_eye[3];
  for (int k = 0; k < 2; ++k) {
    const double* from = k == 1 && rolling ? end : start;
    gaussians::nearest_rotation(from, poses[k]);
    for (int i = 0; i < 3; ++i) poses[k][9 + i] = from[9 + i];
  }
  for (int i = 0; i < 3; ++i) d_eye[i] = pose_sums[12 + i] + 0.0;
  gaussians::EndGradient found[2];
  gaussians::sensor_pose_gradient(poses[0], poses[1], rolling, d_eye, sensor_sums + gaussians::lens_parameter::kCount,
                                  found);
  for (int i = 0; i < kMotion; ++i) {
    float each[2];
    for (int k = 0; k < 2; ++k) {
      each[k] = static_cast<float>(i < 3 ? found[k].translation[i] : found[k].motion_turn[i - 3]);
    }
    if (to_start != nullptr) to_start[i] = to_end == nullptr ? each[0] + each[1] : each[0];
    if (to_end != nullptr) to_end[i] = each[1];
  }
}

// Multiplies the pose by exp(xi) from the left: the rotation follows from the turn by Rodrigues' formula, and the
// translation is the turn's left Jacobian times the translation of xi.
template <class T>
LG_INLINE void move_pose(double* pose, const T* xi) {
  // Below this squared angle the truncated series are exact in double precision.
  constexpr double kSmall = 1e-8;
  const double x = xi[3], y = xi[4], z = xi[5];
  const double square = x * x + y * y + z * z, angle = std::sqrt(square);
  const bool small = square < kSmall;
  const double half = small ? 0.0 : std::sin(angle / 2) / angle;
  // sin x / x, (1 - cos x) / x^2, (x - sin x) / x^3
  const double sine = small ? 1 - square / 6 : std::sin(angle) / angle;
  const double versine = small ? 0.5 - square / 24 : 2 * half * half;
  const double rest = small ? 1.0 / 6 - square / 120 : (angle - std::sin(angle)) / (angle * angle * angle);
  const double cross[3][3] = {{0, -z, y}, {z, 0, -x}, {-y, x, 0}};
  double turn[3][3], moved[kPose];
  for (int i = 0; i < 3; ++i) {
    double along = 0.0;
    for (int j = 0; j < 3; ++j) {
      const double one = i == j ? 1.0 : 0.0;
      const double twice = cross[i][0] * cross[0][j] + cross[i][1] * cross[1][j] + cross[i][2] * cross[2][j];
      turn[i][j] = one + sine * cross[i][j] + versine * twice;
      along += (one + versine * cross[i][j] + rest * twice) * static_cast<double>(xi[j]);
    }
    moved[9 + i] = along;
  }
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      moved[3 * i + j] = turn[i][0] * pose[j] + turn[i][1] * pose[3 + j] + turn[i][2] * pose[6 + j];
    }
    moved[9 + i] += turn[i][0] * pose[9] + turn[i][1] * pose[10] + turn[i][2] * pose[11];
  }
  for (int i = 0; i < kPose; ++i) pose[i] = moved[i];
}

}  // namespace lumigrad::resident
