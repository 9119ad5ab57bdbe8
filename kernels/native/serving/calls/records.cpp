#include "serving/calls/records.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

namespace lumigrad::serving {
namespace {

constexpr double kThousand = 1e3;

AlikeCalls& group_of(const ShortRecord& record, std::vector<AlikeCalls>& groups) {
  const auto is_alike = [&](const AlikeCalls& group) {
    return group.method == record.method && group.tenant == record.tenant && group.engine == record.engine &&
           group.operation == record.operation;
  };
  const auto found = std::find_if(groups.begin(), groups.end(), is_alike);
  if (found != groups.end()) return *found;
  AlikeCalls& group = groups.emplace_back();
  group.method = record.method;
  group.tenant = record.tenant;
  group.engine = record.engine;
  group.operation = record.operation;
  return group;
}

Buckets& stage_of(const std::string& name, AlikeCalls& group) {
  const auto found =
      std::find_if(group.stages.begin(), group.stages.end(), [&](const auto& stage) { return stage.first == name; });
  return found != group.stages.end() ? found->second : group.stages.emplace_back(name, Buckets{}).second;
}

// A time in Python's isoformat, with milliseconds.
std::string time_text(double moment) {
  const auto milliseconds = static_cast<std::int64_t>(std::floor(std::nearbyint(moment * 1e6) / kThousand));
  const auto seconds = static_cast<std::time_t>(milliseconds / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  const std::size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof(text) - length, ".%03d+00:00", static_cast<int>(milliseconds % 1000));
  return text;
}

std::string fixed_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", value);
  return text;
}

// A number in JSON, without trailing zeros.
std::string shortest_text(double value) {
  std::string text = fixed_text(value);
  while (text.back() == '0' && text[text.size() - 2] != '.') text.pop_back();
  return text;
}

std::string plain_line(const ShortRecord& record, const std::string& tenant) {
  std::string line = time_text(record.ended_at) + " INFO call request_id=" + record.request_id +
                     " method=" + record.method + " code=OK ms=" + fixed_text(record.milliseconds) +
                     " received=" + std::to_string(record.bytes_received) +
                     " sent=" + std::to_string(record.bytes_sent);
  if (!tenant.empty()) line += " tenant=" + tenant;
  return line + "\n";
}

std::string json_line(const ShortRecord& record, const std::string& tenant) {
  std::string line = R"({"time": ")" + time_text(record.ended_at) +
                     R"(", "level": "INFO", "message": "call", "request_id": ")" + record.request_id +
                     R"(", "method": ")" + record.method + R"(", "code": "OK", "ms": )" +
                     shortest_text(record.milliseconds) + R"(, "received": )" + std::to_string(record.bytes_received) +
                     R"(, "sent": )" + std::to_string(record.bytes_sent);
  if (!tenant.empty()) line += R"(, "tenant": )" + tenant;
  return line + "}\n";
}

}  // namespace

void Records::add(ShortRecord record) {
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
}

std::vector<ShortRecord> Records::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(records_, {});
}

void Buckets::add(double value, const std::vector<double>& bounds) {
  counts.resize(bounds.size() + 1);
  ++counts[static_cast<std::size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
  total += value;
}

std::vector<AlikeCalls> alike_calls(const std::vector<ShortRecord>& records, const std::vector<double>& bounds) {
  std::vector<AlikeCalls> groups;
  for (const ShortRecord& record : records) {
    AlikeCalls& group = group_of(record, groups);
    ++group.calls;
    group.bytes_sent += record.bytes_sent;
    group.bytes_received += record.bytes_received;
    group.seconds.add(record.milliseconds / kThousand, bounds);
    for (const auto& [name, milliseconds] : record.stages) stage_of(name, group).add(milliseconds / kThousand, bounds);
    if (record.batch_views > 0) group.batch_views.push_back(record.batch_views);
  }
  return groups;
}

std::vector<std::string> log_blocks(const std::vector<ShortRecord>& records, LogFormat format, std::size_t most_bytes,
                                    const std::map<std::string, std::string>& quoted) {
  std::vector<std::string> blocks(1);
  for (const ShortRecord& record : records) {
    const std::string& tenant = quoted.at(record.tenant);
    const std::string line = format == LogFormat::kPlain ? plain_line(record, tenant) : json_line(record, tenant);
    if (!blocks.back().empty() && blocks.back().size() + line.size() > most_bytes) blocks.emplace_back();
    blocks.back() += line;
  }
  return blocks;
}

}  // namespace lumigrad::serving
