// The bytes of replies around their payload.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lumigrad::serving {

struct StageTime {
  std::string_view name;
  double milliseconds;
};

// The field `timings` of a `lumigrad.v1.RenderReply`, or of another reply with this field number. Its length depends on
// the names alone.
std::string timings_field(std::span<const StageTime> stages, double total_milliseconds, unsigned number = 6);

}  // namespace lumigrad::serving
