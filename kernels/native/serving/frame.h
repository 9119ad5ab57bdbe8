// Frames of a stream: their requests, and the bytes of their replies around a RenderReply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/request.h"

namespace lumigrad::serving {

// A `lumigrad.v1.FrameRequest` that has only cameras with OpenCV's model, and may not be skipped.
struct FrameRequest {
  std::uint64_t number = 0;
  std::uint32_t timeout_ms = 0;  // 0 if there is none.
  bool is_pipelined = false;
  std::string lane;  // With the lease; empty without a lane.
  // All bytes of the cameras except their poses, and whether there is a lane. Frames with equal keys that follow the
  // same `render` differ only in the values of their poses and in the lane's name.
  std::string key;
  std::vector<CameraPose> poses;  // Poses of the cameras, in order.
};

// Returns nullopt for any request that may be invalid or is of another kind: with a `render`, a frame that may be
// skipped, repeated fields, cameras that `read_render_request` rejects, text that is not ASCII, or malformed bytes.
std::optional<FrameRequest> read_frame_request(std::string_view raw);

// The bytes of a `lumigrad.v1.FrameReply` before its RenderReply.
std::string frame_head(std::uint64_t number, std::size_t reply_bytes);

}  // namespace lumigrad::serving
