// Frames of a stream: their requests, and the bytes of their replies around those of a RenderReply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/request.h"

namespace lumigrad::serving {

// A `lumigrad.v1.FrameRequest` that has nothing but cameras with OpenCV's model, and may be waited for.
struct FrameRequest {
  std::uint64_t number = 0;
  std::uint32_t timeout_ms = 0;  // 0: none.
  bool is_pipelined = false;
  std::string lane;  // With the lease; empty: no lane.
  // All bytes of the cameras but those of their poses, and whether there is a lane. Frames of equal keys differ only in
  // values of poses and in the lane's name, as long as they follow the same `render`.
  std::string key;
  std::vector<CameraPose> poses;  // Poses of the cameras, in order.
};

// None for whatever may be wrong or of another kind: a `render`, a frame that may be skipped, fields that occur twice,
// other cameras than `read_render_request` takes, text that is not ASCII, or bytes that are no message.
std::optional<FrameRequest> read_frame_request(std::string_view raw);

// The bytes of a `lumigrad.v1.FrameReply` before those of its RenderReply.
std::string frame_head(std::uint64_t number, std::size_t reply_bytes);

}  // namespace lumigrad::serving
