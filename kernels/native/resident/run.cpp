#include "resident/run.h"

namespace lumigrad::resident {

using serving::Outcome;

namespace {

// Jobs in the queue, so that the device's thread finds the next step at the end of a step.
constexpr std::size_t kQueued = 2;
// The number of steps by which the host may be ahead of the device.
constexpr std::size_t kAhead = 2;

// The end of a step's work on the device.
class StepWork final : public serving::LeftWork {
 public:
  explicit StepWork(std::shared_ptr<Report> report) : report_(std::move(report)) {}
  void wait() noexcept override {
    try {
      report_->wait();
    } catch (...) {
      // A reader of the report gets the error.
    }
  }

 private:
  const std::shared_ptr<Report> report_;
};

}  // namespace

class StepJob final : public serving::NativeJob {
 public:
  StepJob(serving::Demand demand, serving::Queue& queue, std::shared_ptr<Training> training, std::uint64_t number,
          std::vector<std::uint32_t> views)
      : NativeJob(std::move(demand)),
        queue_(queue),
        training_(std::move(training)),
        number_(number),
        views_(std::move(views)) {}

  void run(std::span<NativeJob* const>) override {
    report = training_->step(number_, views_);
    if (!report->is_complete()) queue_.leave(demand.sequence, std::make_shared<StepWork>(report));
  }

  std::shared_ptr<Report> report;

 private:
  serving::Queue& queue_;
  const std::shared_ptr<Training> training_;
  const std::uint64_t number_;
  const std::vector<std::uint32_t> views_;
};

Run::Run(serving::Queue& queue, std::shared_ptr<Training> training, serving::Demand demand, std::int64_t room_bytes,
         std::uint64_t first, std::vector<std::vector<std::uint32_t>> views)
    : queue_(queue),
      training_(std::move(training)),
      demand_(std::move(demand)),
      room_bytes_(room_bytes),
      first_(first),
      views_(std::move(views)) {}

Outcome Run::make() {
  while (true) {
    while (outcome_ == Outcome::kDone && !is_broken_ && sent_ < views_.size() && waiting_.size() < kQueued && send()) {
    }
    if (waiting_.empty()) return outcome_;
    receive();
    if (reports_.size() > kAhead) await(*reports_[reports_.size() - 1 - kAhead]);
  }
}

// Waits for a step. If the device has failed, a reader of the reports gets the error, and no further step is made.
void Run::await(Report& report) {
  try {
    report.wait();
  } catch (...) {
    is_broken_ = true;
  }
}

void Run::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  for (const auto& job : waiting_) queue_.cancel(*job);
}

// Submits the next step; false if the queue does not accept it now.
bool Run::send() {
  auto job = std::make_shared<StepJob>(demand_, queue_, training_, first_ + sent_, views_[sent_]);
  job->room_bytes = room_bytes_;
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) {
    outcome_ = Outcome::kCancelled;
    return false;
  }
  if (!queue_.submit(job)) {
    // Without a place for a second job, the first must end before the next step is submitted.
    if (waiting_.empty()) outcome_ = job->outcome;
    return false;
  }
  waiting_.push_back(std::move(job));
  ++sent_;
  return true;
}

// Waits for the step that was submitted first.
void Run::receive() {
  const std::shared_ptr<StepJob> job = waiting_.front();
  const Outcome found = queue_.wait(*job);
  {
    const std::lock_guard lock(mutex_);
    waiting_.pop_front();
  }
  if (found == Outcome::kDone) {
    reports_.push_back(std::move(job->report));
    queued_seconds_ += serving::seconds_of(job->started - job->queued);
  } else if (outcome_ == Outcome::kDone) {
    outcome_ = found;
    error_ = job->error;
    overdue_limit_ = job->overdue_limit;
  }
}

}  // namespace lumigrad::resident
