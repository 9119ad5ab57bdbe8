// How long jobs take, from those of their kind that ran lately.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serving/job.h"

namespace lumigrad::serving {

// Not thread-safe: the owner holds a lock around every call.
class Estimates {
 public:
  // Records the seconds per view of a job that has just ended; of kind 0 nothing is known.
  void add(std::uint64_t kind, double seconds, Clock::time_point now = Clock::now());
  // The typical seconds of a job, if enough of its kind ran lately.
  std::optional<double> typical(std::uint64_t kind, double views, Clock::time_point now = Clock::now()) const;
  // The least seconds that a job can be expected to take; 0 if too few of its kind ran lately.
  double least(std::uint64_t kind, double views, Clock::time_point now = Clock::now()) const;
  // The number of kinds of which anything is known.
  std::size_t size() const { return kinds_.size(); }

 private:
  struct Timing {
    Clock::time_point noted;
    double seconds;  // Per view.
  };
  struct Kind {
    std::deque<Timing> timings;
    std::list<std::uint64_t>::iterator place;
  };
  // The seconds per view of recent timings; empty if they are too few.
  std::vector<double> recent(std::uint64_t kind, Clock::time_point now) const;

  std::unordered_map<std::uint64_t, Kind> kinds_;
  std::list<std::uint64_t> order_;  // The kind that ran last is the last.
};

}  // namespace lumigrad::serving
