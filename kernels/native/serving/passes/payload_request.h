// Requests whose tensors are their payload, read without parsing them whole: requests of one kind differ in the payload
// only, and in the forward state that they name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serving/request.h"

namespace lumigrad::serving {

struct PayloadRequest {
  // All bytes but those of the payload, and of the name of a state. Requests of equal keys are equal but for these.
  std::string key;
  std::string_view payload;
};

struct QueryRequest : PayloadRequest {
  SceneRef scene;
};

struct BackwardRequest : PayloadRequest {
  std::string_view context_id;
};

// A `lumigrad.v1.QueryRequest` of a scene that it names by its id. None for whatever may be wrong or of another kind: a
// world or poses in the request, tensors outside of the payload, a payload that continues in other messages, a forward
// state to retain, or bytes that are no message. `raw` must outlive the result.
std::optional<QueryRequest> read_query_request(std::string_view raw);

// A `lumigrad.v1.BackwardRequest` of a forward state that was retained; none as above.
std::optional<BackwardRequest> read_backward_request(std::string_view raw);

}  // namespace lumigrad::serving
