// The bytes of a `lumigrad.v1.RenderReply` around its payload.
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

// The field `timings`. Its length depends on the names alone.
std::string timings_field(std::span<const StageTime> stages, double total_milliseconds);

}  // namespace lumigrad::serving
