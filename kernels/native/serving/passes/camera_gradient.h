// Gradients of OpenCV's cameras, from the sums of a backward pass of Gaussians that do not move.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "serving/request.h"

namespace lumigrad::serving {

// The number of values of such a gradient for one camera, by its name in replies; 0: it is none.
std::size_t camera_values(std::string_view name);

// The gradients by name, of all cameras one after the other; bit by bit those of `pose_gradient.of_cameras` in the
// Python package, if they are finite. `poses` and `intrinsics` are those of gaussians::Gradients, for one slice.
std::map<std::string, std::vector<float>, std::less<>> camera_gradients(const double* poses, const double* intrinsics,
                                                                        const std::vector<CameraPose>& cameras);

}  // namespace lumigrad::serving
