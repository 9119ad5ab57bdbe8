#include "serving/reply.h"

#include "serving/fields.h"

namespace lumigrad::serving {
namespace {

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

std::string timings_field(std::span<const StageTime> stages, double total_milliseconds, unsigned number) {
  // Field numbers of Timings.stages and .total_milliseconds, and of Stage.name and .milliseconds.
  enum Number : unsigned { kStages = 1, kTotal = 2, kName = 1, kMilliseconds = 2 };
  std::string timings;
  for (const StageTime& stage : stages) {
    std::string message;
    append_bytes(message, kName, stage.name);
    append_double(message, kMilliseconds, stage.milliseconds);
    append_bytes(timings, kStages, message);
  }
  append_double(timings, kTotal, total_milliseconds);
  std::string field;
  append_bytes(field, number, timings);
  return field;
}

}  // namespace lumigrad::serving
