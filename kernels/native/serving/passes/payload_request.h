// Requests whose tensors are their payload, or lie in shared memory, read without full parsing: requests of one kind
// differ only in the payload, in the places in shared memory, and in the forward state that they name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/request.h"

namespace lumigrad::serving {

// A `lumigrad.v1.RegionSpan`.
struct RegionSpan {
  std::uint64_t region = 0, offset = 0, length = 0;
};

struct PayloadRequest {
  // All bytes except the payload, the spans and the name of a state. Requests with equal keys differ only in these.
  std::string key;
  std::string_view payload;
  std::vector<RegionSpan> spans;  // Places of the tensors in shared memory, in order.
};

struct QueryRequest : PayloadRequest {
  SceneRef scene;
};

struct BackwardRequest : PayloadRequest {
  std::string_view context_id;
};

// Reads a `lumigrad.v1.QueryRequest` that names a scene by its id. Returns nullopt for any request that may be invalid
// or is of another kind: with a world or poses, tensors outside the payload, a payload that continues in other
// messages, a forward state to retain, or malformed bytes. `raw` must outlive the result.
std::optional<QueryRequest> read_query_request(std::string_view raw);

// Reads a `lumigrad.v1.BackwardRequest` of a retained forward state, whose tensors may also lie in shared memory;
// nullopt as above.
std::optional<BackwardRequest> read_backward_request(std::string_view raw);

}  // namespace lumigrad::serving
