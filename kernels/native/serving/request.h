// Render requests of stored scenes, read without parsing them whole: requests of one kind differ in poses only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/fields.h"

namespace lumigrad::serving {

// World to camera: p = rotation * x + translation, row-major; finite.
struct CameraPose {
  std::array<double, 9> rotation;
  std::array<double, 3> translation;
};

// A `lumigrad.v1.SceneRef`.
struct SceneRef {
  std::string_view scene_id;  // Or the name.
  std::uint64_t version = 0;  // 0: the current one.
  bool is_named = false;
};

// False for whatever may be wrong or of another kind, as below.
bool read_scene_ref(std::string_view message, SceneRef& scene);

// Reads a `lumigrad.v1.Camera`: appends its pose, and to the key all else. False as above.
bool read_camera(std::string_view message, std::vector<CameraPose>& poses, Key& key);

// A `lumigrad.v1.RenderRequest` of a scene that it refers to, seen by cameras with OpenCV's model.
struct RenderRequest : SceneRef {
  // All bytes but those of the poses. Requests of equal keys are equal but for the values of their poses.
  std::string key;
  std::vector<CameraPose> poses;  // Poses of its cameras, in order.
};

// None for whatever may be wrong or of another kind: a scene or tensors in the request, other cameras, fields that
// occur twice, numbers that are not packed, values that are not finite, or bytes that are no message. `raw` must
// outlive the result.
std::optional<RenderRequest> read_render_request(std::string_view raw);

}  // namespace lumigrad::serving
