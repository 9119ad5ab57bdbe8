// Records of calls that ran without Python, until they reach the metrics and the log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lumigrad::serving {

// Record of an answered call. Stages are names with milliseconds.
struct ShortRecord {
  std::string method, request_id, tenant, engine;
  std::vector<std::pair<std::string, double>> stages;
  double milliseconds = 0;
  double ended_at = 0;  // Seconds since 1970.
  std::size_t bytes_sent = 0;
  int batch_views = 0;
  std::size_t bytes_received = 0;
  std::string operation = "forward";
};

// Unread records. Thread-safe.
class Records {
 public:
  void add(ShortRecord record);
  std::vector<ShortRecord> take();

 private:
  std::mutex mutex_;
  std::vector<ShortRecord> records_;
};

// A histogram; its last bucket has no upper bound.
struct Buckets {
  std::vector<std::uint64_t> counts;
  double total = 0;

  // `bounds` are ascending, inclusive upper bounds of the buckets.
  void add(double value, const std::vector<double>& bounds);
};

// Calls with the same labels.
struct AlikeCalls {
  std::string method, tenant, engine, operation;
  std::uint64_t calls = 0, bytes_sent = 0, bytes_received = 0;
  Buckets seconds;
  std::vector<std::pair<std::string, Buckets>> stages;  // Seconds.
  std::vector<int> batch_views;
};

std::vector<AlikeCalls> alike_calls(const std::vector<ShortRecord>& records, const std::vector<double>& bounds);

enum class LogFormat { kPlain, kJson };

// The log lines of calls, in the format of server/core/logs.py, in blocks of up to `most_bytes`. `quoted` has the names
// of all their tenants as the lines show them.
std::vector<std::string> log_blocks(const std::vector<ShortRecord>& records, LogFormat format, std::size_t most_bytes,
                                    const std::map<std::string, std::string>& quoted);

}  // namespace lumigrad::serving
