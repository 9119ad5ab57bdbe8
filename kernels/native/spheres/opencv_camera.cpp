#include "spheres/opencv_camera.h"

#include <cmath>

namespace lumigrad::spheres {
namespace {

float length_of(const float (&v)[3]) { return std::sqrt((v[0] * v[0] + v[1] * v[1]) + v[2] * v[2]); }

// Sets the film at distance 1 from the eye: the centre of pixel (0, 0) relative to the eye, and steps per pixel.
void set_film(Camera& camera, const OpenCVLens& lens, const double* right, const double* down, const double* forward) {
  const double left = (0.5 - lens.cx) / lens.fx, top = (0.5 - lens.cy) / lens.fy;
  for (int i = 0; i < 3; ++i) {
    const double origin = camera.eye64[i] + forward[i] + left * right[i] + top * down[i];
    camera.eye[i] = static_cast<float>(camera.eye64[i]);
    camera.origin[i] = static_cast<float>(origin) - camera.eye[i];
    camera.pixel_x[i] = static_cast<float>(right[i] / lens.fx);
    camera.pixel_y[i] = static_cast<float>(down[i] / lens.fy);
  }
}

// Sets the frame in float32, from the rounded film.
void set_frame(Camera& camera, const double* forward) {
  const float(&x)[3] = camera.pixel_x;
  const float(&y)[3] = camera.pixel_y;
  const float across[3] = {y[1] * x[2] - y[2] * x[1], y[2] * x[0] - y[0] * x[2], y[0] * x[1] - y[1] * x[0]};
  float along = 0.0f;
  for (int i = 0; i < 3; ++i) along += across[i] * static_cast<float>(forward[i]);
  const float length_x = length_of(x), length_y = length_of(y);
  const float length = along < 0.0f ? -length_of(across) : length_of(across);
  for (int i = 0; i < 3; ++i) {
    camera.forward[i] = across[i] / length;
    camera.rotation[i] = x[i] / length_x;
    camera.rotation[3 + i] = y[i] / length_y;
    camera.rotation[6 + i] = camera.forward[i];
  }
  camera.half_pixel = 0.5f * length_x;
  camera.pixels_per_unit_x = 1.0f / (2.0f * (0.5f * length_x));
  camera.pixels_per_unit_y = 1.0f / (2.0f * (0.5f * length_y));
}

}  // namespace

Camera opencv_camera(const OpenCVLens& lens, const std::array<double, 9>& rotation,
                     const std::array<double, 3>& translation, const DepthRange& range) {
  const double *right = rotation.data(), *down = right + 3, *forward = right + 6;
  Camera camera{};
  camera.width = lens.width;
  camera.height = lens.height;
  camera.aperture_width = static_cast<float>(lens.width);
  camera.aperture_height = static_cast<float>(lens.height);
  for (int i = 0; i < 3; ++i) {
    camera.eye64[i] = -(right[i] * translation[0] + down[i] * translation[1] + forward[i] * translation[2]);
  }
  for (int i = 0; i < 9; ++i) camera.rotation64[i] = rotation[i];
  set_film(camera, lens, right, down, forward);
  set_frame(camera, forward);
  camera.focal = 1.0f;
  camera.scale_x = lens.fx;
  camera.scale_y = lens.fy;
  camera.centre_x = lens.cx - 0.5;
  camera.centre_y = lens.cy - 0.5;
  camera.axis_x = static_cast<float>(camera.centre_x);
  camera.axis_y = static_cast<float>(camera.centre_y);
  camera.z_min64 = range.near;
  camera.z_max64 = range.far;
  camera.z_min = static_cast<float>(range.near);
  camera.z_max = static_cast<float>(range.far);
  camera.inverse_range = 1.0f / (camera.z_max - camera.z_min);
  return camera;
}

bool is_rotation(const std::array<double, 9>& m) {
  constexpr double kDeviation = 0.9e-3;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j <= i; ++j) {
      const double product = m[3 * i] * m[3 * j] + m[3 * i + 1] * m[3 * j + 1] + m[3 * i + 2] * m[3 * j + 2];
      if (!(std::abs(product - (i == j ? 1.0 : 0.0)) <= kDeviation)) return false;
    }
  }
  return m[0] * (m[4] * m[8] - m[5] * m[7]) - m[1] * (m[3] * m[8] - m[5] * m[6]) + m[2] * (m[3] * m[7] - m[4] * m[6]) >
         0.0;
}

}  // namespace lumigrad::spheres
