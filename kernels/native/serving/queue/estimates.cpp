#include "serving/queue/estimates.h"

#include <algorithm>

namespace lumigrad::serving {
namespace {

constexpr std::size_t kMostKinds = 1024;
constexpr std::size_t kMostTimings = 16;
// The minimum number of timings for an estimate: the first call of a kind may have to wait for memory.
constexpr std::size_t kLeastTimings = 3;
// Older timings are ignored: the reason for a slow call may have passed.
constexpr auto kRecent = std::chrono::seconds(30);
// The lower bound of an estimate, as a fraction of the fastest timing.
constexpr double kLeastFraction = 0.5;

}  // namespace

void Estimates::add(std::uint64_t kind, double seconds, Clock::time_point now) {
  if (kind == 0) return;
  const auto [found, is_new] = kinds_.try_emplace(kind);
  if (is_new) {
    found->second.place = order_.insert(order_.end(), kind);
  } else {
    order_.splice(order_.end(), order_, found->second.place);
  }
  std::deque<Timing>& timings = found->second.timings;
  timings.push_back({now, seconds});
  if (timings.size() > kMostTimings) timings.pop_front();
  if (kinds_.size() > kMostKinds) {
    kinds_.erase(order_.front());
    order_.pop_front();
  }
}

std::optional<double> Estimates::typical(std::uint64_t kind, double views, Clock::time_point now) const {
  std::vector<double> seconds = recent(kind, now);
  if (seconds.empty()) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  const std::size_t half = seconds.size() / 2;
  const double median = seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
  return median * views;
}

double Estimates::least(std::uint64_t kind, double views, Clock::time_point now) const {
  const std::vector<double> seconds = recent(kind, now);
  return seconds.empty() ? 0.0 : kLeastFraction * *std::min_element(seconds.begin(), seconds.end()) * views;
}

std::vector<double> Estimates::recent(std::uint64_t kind, Clock::time_point now) const {
  std::vector<double> seconds;
  const auto found = kinds_.find(kind);
  if (found == kinds_.end()) return seconds;
  for (const Timing& timing : found->second.timings) {
    if (now - timing.noted <= kRecent) seconds.push_back(timing.seconds);
  }
  if (seconds.size() < kLeastTimings) seconds.clear();
  return seconds;
}

}  // namespace lumigrad::serving
