// Conversion of OpenCV's pinhole cameras to the engine's.
#pragma once

#include <array>
#include <cstdint>

#include "spheres/params.h"

namespace lumigrad::spheres {

// Focal lengths and principal point in pixels; the centre of pixel (u, v) is at (u + 0.5, v + 0.5).
struct OpenCVLens {
  double fx, fy, cx, cy;
  std::int32_t width, height;
};

// Distances along the axis, scene units.
struct DepthRange {
  double near, far;
};

// `rotation` is row-major, and maps the world to the camera: p = rotation * x + translation.
Camera opencv_camera(const OpenCVLens& lens, const std::array<double, 9>& rotation,
                     const std::array<double, 3>& translation, const DepthRange& range);

// Whether the Python package certainly accepts a finite matrix as a rotation; its checks allow a little more.
bool is_rotation(const std::array<double, 9>& matrix);

}  // namespace lumigrad::spheres
