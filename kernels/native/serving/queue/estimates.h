// Estimates of how long jobs take, from recent jobs of the same kind.
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
  // Records the seconds per view of a job that has just ended; kind 0 is ignored.
  void add(std::uint64_t kind, double seconds, Clock::time_point now = Clock::now());
  // The typical seconds of a job, if enough jobs of its kind ran recently.
  std::optional<double> typical(std::uint64_t kind, double views, Clock::time_point now = Clock::now()) const;
  // The least seconds that a job can be expected to take; 0 if too few jobs of its kind ran recently.
  double least(std::uint64_t kind, double views, Clock::time_point now = Clock::now()) const;
  // The number of kinds with timings.
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
  // The seconds per view of recent timings; empty if there are too few.
  std::vector<double> recent(std::uint64_t kind, Clock::time_point now) const;

  std::unordered_map<std::uint64_t, Kind> kinds_;
  std::list<std::uint64_t> order_;  // Kinds by their last run, the latest at the back.
};

}  // namespace lumigrad::serving
