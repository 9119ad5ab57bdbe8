#include "serving/passes/camera_gradient.h"

#include <array>

#include "gaussians/params.h"

namespace lumigrad::serving {
namespace {

constexpr const char *kRotation = "camera_rotation", *kTranslation = "camera_translation",
                     *kIntrinsics = "camera_intrinsics", *kPose = "camera_pose";

template <std::size_t kCount>
void append(std::vector<float>& to, const std::array<double, kCount>& values) {
  for (const double value : values) to.push_back(static_cast<float>(value));
}

}  // namespace

std::size_t camera_values(std::string_view name) {
  if (name == kRotation) return 9;
  if (name == kTranslation) return 3;
  if (name == kIntrinsics) return 4;
  return name == kPose ? 6 : 0;
}

std::map<std::string, std::vector<float>, std::less<>> camera_gradients(const double* poses, const double* intrinsics,
                                                                        const std::vector<CameraPose>& cameras) {
  std::map<std::string, std::vector<float>, std::less<>> found;
  for (const CameraPose& camera : cameras) {
    const auto& r = camera.rotation;
    const auto& t = camera.translation;
    std::array<double, 9> rotation;
    std::array<double, 3> translation, eye;
    // Adding 0 turns -0 into 0, as the products with the pose of a resting slice do.
    for (int i = 0; i < 9; ++i) rotation[i] = poses[i] + 0.0;
    for (int i = 0; i < 3; ++i) translation[i] = poses[9 + i] + 0.0;
    for (int i = 0; i < 3; ++i) eye[i] = poses[12 + i] + 0.0;
    // eye = -R^T t.
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) rotation[3 * i + j] -= t[i] * eye[j];
      translation[i] -= r[3 * i] * eye[0] + r[3 * i + 1] * eye[1] + r[3 * i + 2] * eye[2];
    }
    // d rotation = [phi] R and d translation = [phi] t + rho.
    const auto turn = [&](int i, int j) {
      const double *d = &rotation[3 * i], *of = &r[3 * j];
      return (d[0] * of[0] + d[1] * of[1] + d[2] * of[2]) + translation[i] * t[j];
    };
    append(found[kRotation], rotation);
    append(found[kTranslation], translation);
    append<4>(found[kIntrinsics], {intrinsics[0], intrinsics[1], intrinsics[2], intrinsics[3]});
    append(found[kPose], translation);
    append<3>(found[kPose], {turn(2, 1) - turn(1, 2), turn(0, 2) - turn(2, 0), turn(1, 0) - turn(0, 1)});
    poses += gaussians::kPoseSums;
    intrinsics += 4;
  }
  return found;
}

}  // namespace lumigrad::serving
