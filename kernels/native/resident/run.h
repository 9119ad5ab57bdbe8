// Consecutive steps of a training, as jobs of the device's queue; other jobs may run between two steps.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "resident/training.h"
#include "serving/queue/queue.h"

namespace lumigrad::resident {

class StepJob;

// One thread makes the steps; any other may cancel them. The training must not be used elsewhere meanwhile.
class Run {
 public:
  // The steps begin with number `first`, each with its views. `demand` and `room_bytes` are for one step.
  Run(serving::Queue& queue, std::shared_ptr<Training> training, serving::Demand demand, std::int64_t room_bytes,
      std::uint64_t first, std::vector<std::vector<std::uint32_t>> views);

  // Makes the steps one by one until one is not done; returns its outcome, or kDone. The reports of the last two
  // steps may be incomplete, while the device still works on them.
  serving::Outcome make();
  // Ends the run before the next step. On any thread.
  void cancel();

  // Reports of the completed steps, in order.
  const std::vector<std::shared_ptr<Report>>& reports() const { return reports_; }
  // The error of the failed step (kFailed).
  std::exception_ptr error() const { return error_; }
  double queued_seconds() const { return queued_seconds_; }
  double overdue_limit() const { return overdue_limit_; }

 private:
  bool send();
  void receive();
  void await(Report& report);

  serving::Queue& queue_;
  const std::shared_ptr<Training> training_;
  const serving::Demand demand_;
  const std::int64_t room_bytes_;
  const std::uint64_t first_;
  const std::vector<std::vector<std::uint32_t>> views_;
  std::vector<std::shared_ptr<Report>> reports_;
  std::size_t sent_ = 0;
  bool is_broken_ = false;
  serving::Outcome outcome_ = serving::Outcome::kDone;
  std::exception_ptr error_;
  double queued_seconds_ = 0, overdue_limit_ = 0;
  std::mutex mutex_;  // Guards the members that follow.
  std::deque<std::shared_ptr<StepJob>> waiting_;
  bool is_cancelled_ = false;
};

}  // namespace lumigrad::resident
