#include "serving/queue/lines.h"

#include <utility>

namespace lumigrad::serving {
namespace {

// A tenant's more urgent calls run first for this much device time while its other calls wait ...
constexpr double kTurnSeconds = 1.0;
// ... and after that get this multiple of the time that its other calls get.
constexpr double kLead = 4.0;

}  // namespace

std::size_t Lines::Line::size() const {
  std::size_t count = 0;
  for (const auto& jobs : waiting) count += jobs.size();
  return count;
}

Lines::Offered Lines::Line::offered() const {
  Offered found;
  for (int priority = 0; priority < kPriorities; ++priority) found[priority] = !waiting[priority].empty();
  return found;
}

int Lines::Line::turn() const {
  int last = 0;
  for (int priority = 0; priority < kPriorities; ++priority) {
    if (!waiting[priority].empty()) last = priority;
  }
  for (int priority = 0; priority < last; ++priority) {
    if (!waiting[priority].empty() && ahead[priority] < kTurnSeconds) return priority;
  }
  return last;
}

void Lines::Line::charge(int priority, const Offered& offered, double more) {
  seconds += more;
  for (int other = 0; other < priority; ++other) {
    if (offered[other]) ahead[other] -= kLead * more;
  }
  const bool others_waited = std::any_of(offered.begin() + priority + 1, offered.end(), [](bool any) { return any; });
  if (others_waited) ahead[priority] += more;
}

std::size_t Lines::taken_by(const std::string& tenant) const {
  const Line* line = find(tenant);
  return line == nullptr ? 0 : line->size();
}

bool Lines::has_place(const std::string& tenant) const {
  const std::size_t own = taken_by(tenant), kept = own > 0 ? places_.kept : 0;
  return own < places_.share && size_ + kept < places_.limit;
}

void Lines::put(std::shared_ptr<Job> job) {
  Line& line = at(job->demand.tenant);
  if (line.size() == 0) line.seconds = std::max(line.seconds, floor_);
  ++size_;
  bytes_ += job->demand.bytes;
  line.waiting[job->demand.priority].push_back(std::move(job));
}

const Job& Lines::next() const {
  const Line& line = next_line();
  return *line.waiting[line.turn()].front();
}

std::shared_ptr<Job> Lines::take() {
  Line& line = next_line();
  last_ = &line;
  last_priority_ = line.turn();
  last_offered_ = line.offered();
  floor_ = line.seconds;
  auto& waiting = line.waiting[last_priority_];
  std::shared_ptr<Job> job = std::move(waiting.front());
  waiting.pop_front();
  has_left(*job);
  return job;
}

void Lines::charge(double seconds) {
  if (last_ == nullptr) return;
  last_->charge(last_priority_, last_offered_, seconds);
  last_ = nullptr;
  if (size_ > 0) return;
  // Time used while no other tenant waited is not charged.
  lines_.clear();
  floor_ = 0;
}

void Lines::charge_later(const std::string& tenant, int priority, double seconds) {
  Line& line = at(tenant);
  line.charge(priority, line.offered(), seconds);
}

std::shared_ptr<Job> Lines::remove(const Job& job) {
  Line* line = find(job.demand.tenant);
  if (line == nullptr) return nullptr;
  auto& waiting = line->waiting[job.demand.priority];
  const auto found = std::find_if(waiting.begin(), waiting.end(), [&](const auto& each) { return each.get() == &job; });
  if (found == waiting.end()) return nullptr;
  std::shared_ptr<Job> removed = std::move(*found);
  waiting.erase(found);
  has_left(*removed);
  return removed;
}

Jobs Lines::clear() {
  Jobs jobs;
  for (auto& line : lines_) {
    for (auto& waiting : line->waiting) std::move(waiting.begin(), waiting.end(), std::back_inserter(jobs));
  }
  lines_.clear();
  last_ = nullptr;
  size_ = bytes_ = 0;
  return jobs;
}

Lines::Line* Lines::find(const std::string& tenant) const {
  for (const auto& line : lines_) {
    if (line->tenant == tenant) return line.get();
  }
  return nullptr;
}

Lines::Line& Lines::at(const std::string& tenant) {
  if (Line* line = find(tenant)) return *line;
  return *lines_.emplace_back(std::make_unique<Line>(Line{tenant, floor_}));
}

Lines::Line& Lines::next_line() const {
  Line* next = nullptr;
  for (const auto& line : lines_) {
    if (line->size() > 0 && (next == nullptr || line->seconds < next->seconds)) next = line.get();
  }
  return *next;
}

void Lines::has_left(const Job& job) {
  --size_;
  bytes_ -= job.demand.bytes;
}

}  // namespace lumigrad::serving
