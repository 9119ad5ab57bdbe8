#include "serving/reply.h"

#include <cstdint>

namespace lumigrad::serving {
namespace {

enum WireType : unsigned { kFixed64 = 1, kLength = 2 };

void append_varint(std::string& to, std::uint64_t value) {
  for (; value >= 128; value >>= 7) to += static_cast<char>((value & 127) | 128);
  to += static_cast<char>(value);
}

void append_tag(std::string& to, unsigned field, WireType type) { append_varint(to, field << 3 | type); }

void append_bytes(std::string& to, unsigned field, std::string_view content) {
  append_tag(to, field, kLength);
  append_varint(to, content.size());
  to += content;
}

void append_double(std::string& to, unsigned field, double value) {
  append_tag(to, field, kFixed64);
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

std::string timings_field(std::span<const StageTime> stages, double total_milliseconds) {
  // RenderReply.timings; Timings.stages and .total_milliseconds; Stage.name and .milliseconds.
  enum Number : unsigned { kTimings = 6, kStages = 1, kTotal = 2, kName = 1, kMilliseconds = 2 };
  std::string timings;
  for (const StageTime& stage : stages) {
    std::string message;
    append_bytes(message, kName, stage.name);
    append_double(message, kMilliseconds, stage.milliseconds);
    append_bytes(timings, kStages, message);
  }
  append_double(timings, kTotal, total_milliseconds);
  std::string field;
  append_bytes(field, kTimings, timings);
  return field;
}

}  // namespace lumigrad::serving
