// Render requests of stored scenes, read without full parsing: requests of one kind differ only in poses.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/fields.h"

namespace lumigrad::serving {

// World to camera: p = rotation * x + translation; row-major; finite.
struct CameraPose {
  std::array<double, 9> rotation;
  std::array<double, 3> translation;
};

// A `lumigrad.v1.SceneRef`.
struct SceneRef {
  std::string_view scene_id;  // Or the name.
  std::uint64_t version = 0;  // 0: the current version.
  bool is_named = false;
};

// Returns false for any message that may be invalid or is of another kind, as below.
bool read_scene_ref(std::string_view message, SceneRef& scene);

// Reads a `lumigrad.v1.Camera`: appends its pose to `poses`, and everything else to the key. False as above.
bool read_camera(std::string_view message, std::vector<CameraPose>& poses, Key& key);

// A `lumigrad.v1.RenderRequest` of a stored scene, seen by cameras with OpenCV's model.
struct RenderRequest : SceneRef {
  // All bytes except the poses. Requests with equal keys differ only in the values of their poses.
  std::string key;
  std::vector<CameraPose> poses;  // Poses of the cameras, in order.
};

// Returns nullopt for any request that may be invalid or is of another kind: with a scene or tensors in it, other
// cameras, repeated fields, numbers that are not packed, values that are not finite, or malformed bytes. `raw` must
// outlive the result.
std::optional<RenderRequest> read_render_request(std::string_view raw);

}  // namespace lumigrad::serving
