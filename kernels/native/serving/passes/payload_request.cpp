#include "serving/passes/payload_request.h"

#include <iterator>

#include "serving/fields.h"

namespace lumigrad::serving {
namespace {

// Longer requests are split into several messages.
constexpr std::size_t kMostBytes = 4 << 20;

// Whether the bytes of a `lumigrad.v1.Tensor` are neither inline nor in shared memory.
bool is_in_payload(std::string_view message) {
  enum { kInline = 3, kRegion = 5 };
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field || field->number == kInline || field->number >= kRegion) return false;
  }
  return true;
}

bool read_span(std::string_view message, RegionSpan& span) {
  std::uint64_t* const values[] = {&span.region, &span.offset, &span.length};
  bool has[std::size(values)] = {};
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field || field->type != kVarint || field->number == 0 || field->number > std::size(values)) return false;
    const std::uint32_t index = field->number - 1;
    if (has[index]) return false;
    has[index] = true;
    *values[index] = varint_of(*field);
  }
  return true;
}

// Reads a `lumigrad.v1.Tensor` whose bytes are not inline; false if it may have more than one place.
bool read_tensor(std::string_view message, BackwardRequest& request, Key& key) {
  enum { kInline = 3, kPayload = 4, kRegion = 5 };
  int places = 0;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field || field->number == kInline || field->number > kRegion) return false;
    if (field->number >= kPayload && ++places > 1) return false;
    if (field->number != kRegion) continue;
    request.spans.emplace_back();
    if (field->type != kLength || !read_span(field->content, request.spans.back())) return false;
    key.leave_out(field->content);
  }
  return true;
}

// Reads a `lumigrad.v1.NamedTensor`.
bool read_named(std::string_view message, BackwardRequest& request, Key& key) {
  enum { kTensor = 2 };
  bool has_tensor = false;
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field || field->type != kLength || field->number > kTensor) return false;
    if (field->number != kTensor) continue;
    if (has_tensor || !read_tensor(field->content, request, key)) return false;
    has_tensor = true;
  }
  return true;
}

bool read_distance_spec(std::string_view message, QueryRequest& request, Key&) {
  enum { kSceneRef = 1, kScene = 2, kSpheres = 3, kEnvironments = 4, kPoses = 8 };
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field || field->number == kScene || field->number >= kPoses) return false;
    if (field->number > kEnvironments) continue;
    if (field->type != kLength) return false;
    if (field->number == kSceneRef) {
      if (!request.scene.scene_id.empty() || !read_scene_ref(field->content, request.scene)) return false;
      if (request.scene.is_named) return false;
    } else if (!is_in_payload(field->content)) {
      return false;
    }
  }
  return !request.scene.scene_id.empty();
}

bool read_backward_spec(std::string_view message, BackwardRequest& request, Key& key) {
  enum { kContext = 1, kRender = 2, kGradients = 3, kRelease = 6 };
  for (Fields fields(message); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field || field->number == kRender || field->number > kRelease) return false;
    if (field->number == kContext) {
      if (field->type != kLength || !request.context_id.empty()) return false;
      request.context_id = field->content;
      key.leave_out(field->content);
    } else if (field->number == kGradients) {
      if (field->type != kLength || !read_named(field->content, request, key)) return false;
    }
  }
  return !request.context_id.empty();
}

// Reads a message with the fields `spec` = 1, `payload_bytes` and `data`.
template <class Request, class ReadSpec>
std::optional<Request> read(std::string_view raw, std::uint32_t length_number, std::uint32_t data_number,
                            ReadSpec&& read_spec) {
  if (raw.size() > kMostBytes) return std::nullopt;
  Request request;
  Key key(raw, request.key);
  bool has_spec = false, has_length = false, has_data = false;
  std::uint64_t length = 0;
  for (Fields fields(raw); !fields.at_end();) {
    const std::optional<Field> field = fields.next();
    if (!field) return std::nullopt;
    if (field->number == 1 && field->type == kLength && !has_spec) {
      if (!read_spec(field->content, request, key)) return std::nullopt;
      has_spec = true;
    } else if (field->number == length_number && field->type == kVarint && !has_length) {
      length = varint_of(*field);
      has_length = true;
    } else if (field->number == data_number && field->type == kLength && !has_data) {
      request.payload = field->content;
      key.leave_out(field->content);
      has_data = true;
    } else {
      return std::nullopt;
    }
  }
  if (!has_spec || (!has_data && request.spans.empty()) || length != request.payload.size()) return std::nullopt;
  key.finish();
  return request;
}

}  // namespace

std::optional<QueryRequest> read_query_request(std::string_view raw) {
  return read<QueryRequest>(raw, 3, 4, read_distance_spec);
}

std::optional<BackwardRequest> read_backward_request(std::string_view raw) {
  return read<BackwardRequest>(raw, 2, 3, read_backward_spec);
}

}  // namespace lumigrad::serving
