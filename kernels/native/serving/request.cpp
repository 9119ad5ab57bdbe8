#include "serving/request.h"

#include <array>
#include <cmath>
#include <cstring>

#include "serving/fields.h"

namespace lumigrad::serving {
namespace {

// Longer requests gain little from the shortcut.
constexpr std::size_t kMostBytes = 64 << 10;

// Copies packed doubles; false if their number is wrong or one is not finite.
template <std::size_t kCount>
bool copy_doubles(std::string_view from, std::array<double, kCount>& to) {
  if (from.size() != sizeof(to)) return false;
  std::memcpy(to.data(), from.data(), sizeof(to));
  for (const double value : to) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// Reads a `lumigrad.v1.OpenCVCamera`; its intrinsics and its lens are part of the key.
bool read_opencv(std::string_view message, std::vector<CameraPose>& poses, Key& key) {
  CameraPose pose;
  bool has_rotation = false, has_translation = false;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return false;
    if (field->number == 5) {
      if (has_rotation || field->type != kLength || !copy_doubles(field->content, pose.rotation)) return false;
      has_rotation = true;
      key.leave_out(field->content);
    } else if (field->number == 6) {
      if (has_translation || field->type != kLength || !copy_doubles(field->content, pose.translation)) return false;
      has_translation = true;
      key.leave_out(field->content);
    }
  }
  if (has_rotation && has_translation) poses.push_back(pose);
  return has_rotation && has_translation;
}

}  // namespace

bool read_scene_ref(std::string_view message, SceneRef& scene) {
  bool has_version = false;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return false;
    if ((field->number == 1 || field->number == 3) && field->type == kLength && scene.scene_id.empty()) {
      scene.scene_id = field->content;
      scene.is_named = field->number == 3;
    } else if (field->number == 2 && field->type == kVarint && !has_version) {
      has_version = true;
      scene.version = varint_of(*field);
    } else {
      return false;
    }
  }
  return !scene.scene_id.empty() && !(scene.is_named && has_version);
}

bool read_camera(std::string_view message, std::vector<CameraPose>& poses, Key& key) {
  bool has_model = false;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return false;
    if (field->number <= 2 && field->type == kVarint) continue;  // The size.
    if (field->number != 4 || field->type != kLength || has_model) return false;
    if (!read_opencv(field->content, poses, key)) return false;
    has_model = true;
  }
  return has_model;
}

namespace {

bool read_spec(std::string_view message, RenderRequest& request, Key& key) {
  enum { kSceneRef = 1, kScene = 2, kCameras = 3, kTensors = 7 };
  bool has_scene = false;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return false;
    if (field->number == kSceneRef) {
      if (has_scene || field->type != kLength || !read_scene_ref(field->content, request)) return false;
      has_scene = true;
    } else if (field->number == kCameras) {
      if (field->type != kLength || !read_camera(field->content, request.poses, key)) return false;
    } else if (field->number == kScene || field->number >= kTensors) {
      return false;
    }
  }
  return has_scene && !request.poses.empty();
}

}  // namespace

std::optional<RenderRequest> read_render_request(std::string_view raw) {
  enum { kSpec = 1, kRetain = 2, kFormats = 5 };
  if (raw.size() > kMostBytes) return std::nullopt;
  RenderRequest request;
  Key key(raw, request.key);
  bool has_spec = false;
  for (Fields fields(raw); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return std::nullopt;
    if (field->number == kRetain && field->type == kVarint) continue;
    if (field->type != kLength) return std::nullopt;
    if (field->number == kFormats) continue;
    if (field->number != kSpec || has_spec || !read_spec(field->content, request, key)) return std::nullopt;
    has_spec = true;
  }
  if (!has_spec) return std::nullopt;
  key.finish();
  return request;
}

}  // namespace lumigrad::serving
