// The order of waiting jobs: fair between tenants, by priority within a tenant; and the places that tenants may take.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "serving/job.h"

namespace lumigrad::serving {

using Jobs = std::vector<std::shared_ptr<Job>>;

// Places in the queue: one tenant may take `share` of `limit`, and the last `kept` are for tenants without a place.
struct Places {
  std::size_t limit = 1, share = 1, kept = 0;
};

// The tenant with the least charged device time is next, with the oldest of its most urgent jobs.
//
// Only time during which other tenants waited is charged. A new tenant starts with the charge of the tenant that was
// served last, so that neither has to wait for the other to catch up. Priorities order the jobs of one tenant: more
// urgent jobs are taken first, for a turn of device time while less urgent ones wait, and after that get a multiple of
// the time of those.
//
// Not thread-safe: the owner holds a lock around every call.
class Lines {
 public:
  explicit Lines(Places places) : places_(places) {}

  std::size_t size() const { return size_; }
  std::size_t bytes() const { return bytes_; }
  // The places that a tenant has taken.
  std::size_t taken_by(const std::string& tenant) const;
  bool has_place(const std::string& tenant) const;

  // Adds a job; a place must be free.
  void put(std::shared_ptr<Job> job);
  // The job that `take` would return; at least one job must wait.
  const Job& next() const;
  // Removes and returns the next job; at least one must wait. Call `charge` once it has run.
  std::shared_ptr<Job> take();
  // Moves further jobs that `fits` accepts from the tenant served last to `jobs`, the most urgent first.
  template <class Fits>
  void take_along(Jobs& jobs, Fits fits);
  // Charges the device time of the jobs that were taken last.
  void charge(double seconds);
  // Charges time that a job took while others waited, after other jobs have been taken.
  void charge_later(const std::string& tenant, int priority, double seconds);
  // Removes and returns a job; null if it does not wait.
  std::shared_ptr<Job> remove(const Job& job);
  // Removes all jobs.
  Jobs clear();

  // Whether a condition holds for all waiting jobs.
  template <class Condition>
  bool all(Condition holds) const;
  // Calls look(job) for the jobs that would be taken before a new one of this tenant and priority, in order, until it
  // returns false.
  template <class Look>
  void before(const std::string& tenant, int priority, Look look) const;

 private:
  using Offered = std::array<bool, kPriorities>;  // Whether a job of the priority waits.
  struct Line {
    std::string tenant;
    double seconds;  // Charged to the tenant.
    std::array<std::deque<std::shared_ptr<Job>>, kPriorities> waiting{};
    // Time in excess of a priority's share while less urgent jobs of the tenant waited.
    std::array<double, kPriorities> ahead{};

    std::size_t size() const;
    Offered offered() const;
    int turn() const;  // The priority of the next job; at least one must wait.
    void charge(int priority, const Offered& offered, double seconds);
  };

  Line* find(const std::string& tenant) const;
  Line& at(const std::string& tenant);  // Creates a missing line.
  Line& next_line() const;              // A job must wait.
  void has_left(const Job& job);

  Places places_;
  std::size_t size_ = 0, bytes_ = 0;
  std::vector<std::unique_ptr<Line>> lines_;  // The older of two lines with equal charges is next.
  // The line of the job that was taken last, its priority, and the priorities that its tenant offered.
  Line* last_ = nullptr;
  int last_priority_ = 0;
  Offered last_offered_{};
  double floor_ = 0;
};

template <class Fits>
void Lines::take_along(Jobs& jobs, Fits fits) {
  if (last_ == nullptr) return;
  for (auto& waiting : last_->waiting) {
    std::deque<std::shared_ptr<Job>> rest;
    for (auto& job : waiting) {
      const bool is_taken = fits(*job);
      if (is_taken) has_left(*job);
      if (is_taken) {
        jobs.push_back(std::move(job));
      } else {
        rest.push_back(std::move(job));
      }
    }
    waiting.swap(rest);
  }
}

template <class Condition>
bool Lines::all(Condition holds) const {
  for (const auto& line : lines_) {
    for (const auto& waiting : line->waiting) {
      for (const auto& job : waiting) {
        if (!holds(*job)) return false;
      }
    }
  }
  return true;
}

template <class Look>
void Lines::before(const std::string& tenant, int priority, Look look) const {
  const Line* line = find(tenant);
  for (int urgent = 0; line != nullptr && urgent <= priority; ++urgent) {
    for (const auto& job : line->waiting[urgent]) {
      if (!look(*job)) return;
    }
  }
}

}  // namespace lumigrad::serving
