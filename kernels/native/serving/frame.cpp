#include "serving/frame.h"

#include <algorithm>

namespace lumigrad::serving {
namespace {

// Longer requests gain little from the shortcut.
constexpr std::size_t kMostBytes = 64 << 10;

enum RequestNumber : std::uint32_t { kNumber = 1, kCameras = 3, kTimeout = 4, kLane = 6, kPipelined = 7, kEnd = 8 };

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 128; });
}

// Reads a field that is not a camera.
bool read_field(const Field& field, FrameRequest& request) {
  if (field.number == kLane) {
    request.lane = field.content;
    return field.type == kLength && is_ascii(field.content);
  }
  if (field.type != kVarint) return false;
  const std::uint64_t value = varint_of(field);
  switch (field.number) {
    case kNumber:
      request.number = value;
      return true;
    case kTimeout:
      request.timeout_ms = static_cast<std::uint32_t>(value);
      return value <= UINT32_MAX;
    case kPipelined:
      request.is_pipelined = value != 0;
      return true;
    default:
      return false;
  }
}

// The length comes first, so that different lists of cameras cannot have the same key.
bool read_keyed_camera(std::string_view message, FrameRequest& request) {
  append_varint(request.key, message.size());
  Key key(message, request.key);
  if (!read_camera(message, request.poses, key)) return false;
  key.finish();
  return true;
}

}  // namespace

std::optional<FrameRequest> read_frame_request(std::string_view raw) {
  if (raw.size() > kMostBytes) return std::nullopt;
  FrameRequest request;
  bool has[kEnd] = {};
  for (Fields fields(raw); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return std::nullopt;
    if (field->number == kCameras && field->type == kLength) {
      if (!read_keyed_camera(field->content, request)) return std::nullopt;
      continue;
    }
    if (field->number >= kEnd || has[field->number] || !read_field(*field, request)) return std::nullopt;
    has[field->number] = true;
  }
  if (request.poses.empty()) return std::nullopt;
  request.key += request.lane.empty() ? '\0' : '\1';
  return request;
}

std::string frame_head(std::uint64_t number, std::size_t reply_bytes) {
  enum ReplyNumber : unsigned { kNumberOf = 1, kReply = 2 };
  std::string head;
  append_tag(head, kNumberOf, kVarint);
  append_varint(head, number);
  append_tag(head, kReply, kLength);
  append_varint(head, reply_bytes);
  return head;
}

}  // namespace lumigrad::serving
