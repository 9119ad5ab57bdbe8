// Gradients of OpenCV's cameras, from the sums of a backward pass of resting Gaussians.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "serving/request.h"

namespace lumigrad::serving {

// The number of values per camera of a camera gradient, by its name in replies; 0 if it is not a camera gradient.
std::size_t camera_values(std::string_view name);

// The gradients by name, camera after camera; finite ones have the bits of `pose_gradient.of_cameras` in the Python
// package. `poses` and `intrinsics` are those of gaussians::Gradients, for one slice.
std::map<std::string, std::vector<float>, std::less<>> camera_gradients(const double* poses, const double* intrinsics,
                                                                        const std::vector<CameraPose>& cameras);

}  // namespace lumigrad::serving
