#include "serving/request.h"

#include <cmath>
#include <cstring>

namespace lumigrad::serving {
namespace {

// Longer requests take longer anyway.
constexpr std::size_t kMostBytes = 64 << 10;

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// A field of a message: of those with a length its content, of others their bytes.
struct Field {
  std::uint32_t number;
  std::uint32_t type;
  std::string_view content;
};

// Reads the fields of a message one after the other, as protobuf encodes them.
class Fields {
 public:
  explicit Fields(std::string_view message) : at_(message.data()), end_(message.data() + message.size()) {}

  bool at_end() const { return at_ == end_; }
  // The next field; none if the bytes are no field, or begin a group.
  std::optional<Field> next() {
    std::uint64_t tag = 0;
    if (!read_varint(tag) || tag >> 3 == 0 || tag > UINT32_MAX) return std::nullopt;
    Field field{static_cast<std::uint32_t>(tag >> 3), static_cast<std::uint32_t>(tag & 7), {}};
    const char* begin = at_;
    std::uint64_t value = 0;
    switch (field.type) {
      case kVarint:
        if (!read_varint(value)) return std::nullopt;
        break;
      case kFixed64:
        if (!skip(8)) return std::nullopt;
        break;
      case kFixed32:
        if (!skip(4)) return std::nullopt;
        break;
      case kLength:
        if (!read_varint(value)) return std::nullopt;
        begin = at_;
        if (!skip(value)) return std::nullopt;
        break;
      default:
        return std::nullopt;
    }
    field.content = {begin, static_cast<std::size_t>(at_ - begin)};
    return field;
  }

 private:
  bool skip(std::uint64_t bytes) {
    if (bytes > static_cast<std::uint64_t>(end_ - at_)) return false;
    at_ += bytes;
    return true;
  }
  bool read_varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at_ < end_; shift += 7) {
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  const char* at_;
  const char* end_;
};

// Collects the bytes between the poses.
class Key {
 public:
  Key(std::string_view raw, std::string& to) : raw_(raw), to_(to) { to_.reserve(raw.size()); }

  void leave_out(std::string_view part) {
    const auto begin = static_cast<std::size_t>(part.data() - raw_.data());
    to_.append(raw_, kept_, begin - kept_);
    kept_ = begin + part.size();
  }
  void finish() { to_.append(raw_, kept_); }

 private:
  std::string_view raw_;
  std::string& to_;
  std::size_t kept_ = 0;
};

// Copies packed doubles; false if there are more or fewer, or some are not finite.
template <std::size_t kCount>
bool copy_doubles(std::string_view from, std::array<double, kCount>& to) {
  if (from.size() != sizeof(to)) return false;
  std::memcpy(to.data(), from.data(), sizeof(to));
  for (const double value : to) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

bool read_scene_ref(std::string_view message, RenderRequest& request) {
  bool has_version = false;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return false;
    if (field->number == 1 && field->type == kLength && request.scene_id.empty()) {
      request.scene_id = field->content;
    } else if (field->number == 2 && field->type == kVarint && !has_version) {
      has_version = true;
      int shift = 0;
      for (const char byte : field->content) {
        request.version |= static_cast<std::uint64_t>(byte & 127) << shift;
        shift += 7;
      }
    } else {
      return false;
    }
  }
  return !request.scene_id.empty();
}

// `lumigrad.v1.OpenCVCamera`: its intrinsics and its lens belong to the key.
bool read_opencv(std::string_view message, RenderRequest& request, Key& key) {
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
  if (has_rotation && has_translation) request.poses.push_back(pose);
  return has_rotation && has_translation;
}

bool read_camera(std::string_view message, RenderRequest& request, Key& key) {
  bool has_model = false;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return false;
    if (field->number <= 2 && field->type == kVarint) continue;  // The size.
    if (field->number != 4 || field->type != kLength || has_model) return false;
    if (!read_opencv(field->content, request, key)) return false;
    has_model = true;
  }
  return has_model;
}

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
      if (field->type != kLength || !read_camera(field->content, request, key)) return false;
    } else if (field->number == kScene || field->number >= kTensors) {
      return false;
    }
  }
  return has_scene && !request.poses.empty();
}

}  // namespace

std::optional<RenderRequest> read_render_request(std::string_view raw) {
  enum { kSpec = 1, kFormats = 5 };
  if (raw.size() > kMostBytes) return std::nullopt;
  RenderRequest request;
  Key key(raw, request.key);
  bool has_spec = false;
  for (Fields fields(raw); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field || field->type != kLength) return std::nullopt;
    if (field->number == kFormats) continue;
    if (field->number != kSpec || has_spec || !read_spec(field->content, request, key)) return std::nullopt;
    has_spec = true;
  }
  if (!has_spec) return std::nullopt;
  key.finish();
  return request;
}

}  // namespace lumigrad::serving
