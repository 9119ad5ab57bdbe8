#include "serving/queue/queue.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "common/room.h"

namespace lumigrad::serving {
namespace {

// The weight of the newest batch in the running mean of their times.
constexpr double kNewest = 0.2;
// Longer batches gain little, and each call waits for the whole batch.
constexpr double kBatchSeconds = 0.02;
constexpr double kLeastRetrySeconds = 0.01;

// While it lives, this thread heeds a request to stop and takes no more memory than a room allows.
class Bounds {
 public:
  Bounds(const StopRequest& stop, std::int64_t room_bytes) : room_(room_bytes) {
    heed(&stop);
    limit_memory(&room_);
  }
  ~Bounds() {
    limit_memory(nullptr);
    heed(nullptr);
  }

 private:
  MemoryRoom room_;
};

// The room of a batch: the predicted memory of all its jobs, and the most that one job may take beyond that.
std::int64_t room_of(const std::vector<NativeJob*>& jobs) {
  std::int64_t bytes = 0, beyond = 0;
  for (const NativeJob* job : jobs) {
    const auto predicted = static_cast<std::int64_t>(job->demand.bytes);
    bytes += predicted;
    beyond = std::max(beyond, job->room_bytes - predicted);
  }
  return bytes + beyond;
}

// Runs a batch; returns how its jobs ended, with the exception if they failed.
std::pair<Outcome, std::exception_ptr> run_all(const std::vector<NativeJob*>& jobs, const StopRequest& stop) {
  try {
    const Bounds bounds(stop, room_of(jobs));
    jobs.front()->run(jobs);
    return {Outcome::kDone, nullptr};
  } catch (const Stopped&) {
    return {Outcome::kCancelled, nullptr};
  } catch (...) {
    return {Outcome::kFailed, std::current_exception()};
  }
}

}  // namespace

Queue::~Queue() {
  if (running_) heed(nullptr);
}

bool Queue::submit(const std::shared_ptr<Job>& job) {
  bool is_idle;
  {
    const std::lock_guard lock(mutex_);
    job->outcome = admit(*job);
    if (job->outcome != Outcome::kPending) return false;
    job->queued = Clock::now();
    job->is_waiting = true;
    lines_.put(job);
    is_idle = !running_;
  }
  // A thread that runs a batch looks for the next job itself.
  if (is_idle) changed_.notify_one();
  return true;
}

Outcome Queue::wait(Job& job) {
  // Destroyed without the lock.
  std::shared_ptr<Job> late;
  Lock lock(mutex_);
  const auto has_ended = [&] { return job.outcome != Outcome::kPending; };
  const Clock::time_point deadline = job.demand.deadline;
  const bool has_deadline = deadline < Clock::time_point::max();
  if (has_deadline && !job.has_ended.wait_until(lock, deadline, has_ended) && job.is_waiting) {
    late = remove(job, Outcome::kLate);
  }
  job.has_ended.wait(lock, has_ended);
  return job.outcome;
}

bool Queue::has_started(const Job& job) const {
  const std::lock_guard lock(mutex_);
  return job.started != Clock::time_point{};
}

Outcome Queue::run(const std::shared_ptr<NativeJob>& job) {
  if (job->runs_anywhere() && run_here(job)) return job->outcome;
  return submit(job) ? wait(*job) : job->outcome;
}

// Returns false if another job runs or waits; otherwise the job has run or was refused.
bool Queue::run_here(const std::shared_ptr<NativeJob>& job) {
  Lock lock(mutex_);
  if (running_ || left_ || settling_ || lines_.size() > 0) return false;
  job->outcome = admit(*job);
  if (job->outcome != Outcome::kPending) return true;
  job->queued = Clock::now();
  lines_.put(job);
  start({lines_.take()});
  run_native(lock);
  const bool has_next = lines_.size() > 0 || is_closed_;
  lock.unlock();
  if (has_next) changed_.notify_one();
  return true;
}

void Queue::cancel(Job& job) {
  std::shared_ptr<Job> removed;
  {
    const std::lock_guard lock(mutex_);
    job.is_given_up = true;
    if (job.is_waiting) {
      removed = remove(job, Outcome::kCancelled);
    } else if (running_) {
      const auto is_done = [](const auto& each) { return each->is_given_up && each->demand.repeatable; };
      if (std::all_of(running_->jobs.begin(), running_->jobs.end(), is_done)) running_->stop.make();
    }
  }
  if (removed) removed->has_ended.notify_all();
}

// Removes a waiting job from the queue.
std::shared_ptr<Job> Queue::remove(Job& job, Outcome outcome) {
  job.is_waiting = false;
  job.ended = Clock::now();
  job.outcome = outcome;
  return lines_.remove(job);
}

Queue::Next Queue::take(Jobs& batch, bool may_wait) {
  Lock lock(mutex_);
  while (true) {
    const bool is_at_once = !running_ && lines_.size() > 0 && !lines_.next().is_native();
    if (!may_wait && !is_at_once && (running_ || !is_closed_)) return Next::kNone;
    // The thread of a call may run a job.
    changed_.wait(lock, [&] { return !running_ && (lines_.size() > 0 || is_closed_); });
    if (is_closed_) return Next::kEnd;
    if (must_settle()) {
      if (!may_wait && left_->work) return Next::kNone;
      settling_ = std::exchange(left_, std::nullopt);
      busy_since_ = Clock::now();
      if (!settling_->work) return Next::kSettle;
      const std::shared_ptr<LeftWork> work = settling_->work;
      lock.unlock();
      work->wait();
      settled();
      lock.lock();
      continue;
    }
    start_next();
    if (!running_->jobs.front()->is_native()) {
      batch = running_->jobs;
      heed(&running_->stop);
      return Next::kBatch;
    }
    run_native(lock);
  }
}

void Queue::finish(double seconds, bool ok) {
  heed(nullptr);
  Lock lock(mutex_);
  if (!running_) throw std::logic_error("no batch runs");
  for (const auto& job : running_->jobs) {
    if (job->outcome == Outcome::kPending) job->outcome = Outcome::kDone;
  }
  end(lock, seconds, ok);
}

void Queue::leave(std::uint64_t sequence, std::shared_ptr<LeftWork> work) {
  const std::lock_guard lock(mutex_);
  if (!running_) throw std::logic_error("no batch runs");
  const Demand& demand = running_->jobs.front()->demand;
  left_ = {sequence, demand.tenant, demand.priority, std::move(work)};
}

void Queue::settled() {
  const std::lock_guard lock(mutex_);
  if (!settling_) throw std::logic_error("there is nothing to settle");
  const double seconds = count_busy();
  mean_seconds_ += kNewest * seconds;
  lines_.charge_later(settling_->tenant, settling_->priority, seconds);
  settling_.reset();
}

void Queue::stop_overdue(double limit_seconds) {
  const std::lock_guard lock(mutex_);
  if (!running_ || seconds_of(Clock::now() - running_->started) <= limit_seconds) return;
  const auto is_own = [](const auto& job) { return job->demand.own; };
  if (std::any_of(running_->jobs.begin(), running_->jobs.end(), is_own)) return;
  for (const auto& job : running_->jobs) job->overdue_limit = limit_seconds;
  running_->stop.make();
}

void Queue::close() {
  Jobs refused;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    refused = lines_.clear();
    for (const auto& job : refused) {
      job->is_waiting = false;
      job->ended = Clock::now();
      job->outcome = Outcome::kClosed;
    }
  }
  changed_.notify_all();
  for (const auto& job : refused) job->has_ended.notify_all();
}

void Queue::lose() {
  Jobs lost;
  {
    const std::lock_guard lock(mutex_);
    if (running_) lost = running_->jobs;
    for (const auto& job : lost) {
      if (job->outcome == Outcome::kPending) job->outcome = Outcome::kLost;
    }
  }
  for (const auto& job : lost) job->has_ended.notify_all();
}

std::size_t Queue::depth() const {
  const std::lock_guard lock(mutex_);
  return lines_.size();
}

std::size_t Queue::predicted_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = lines_.bytes();
  if (running_) {
    for (const auto& job : running_->jobs) bytes += job->demand.bytes;
  }
  return bytes;
}

bool Queue::is_busy() const {
  const std::lock_guard lock(mutex_);
  return running_ || lines_.size() > 0;
}

// Counts the work that ends now, and returns its seconds. Measured when the sum is, so that busy_seconds() never falls.
double Queue::count_busy() {
  const double seconds = seconds_of(Clock::now() - *busy_since_);
  busy_seconds_ += seconds;
  busy_since_.reset();
  return seconds;
}

double Queue::held_seconds() const {
  const std::lock_guard lock(mutex_);
  return running_ ? running_->stop.idle_seconds() : 0.0;
}

double Queue::busy_seconds() const {
  const std::lock_guard lock(mutex_);
  return busy_seconds_ + (busy_since_ ? seconds_of(Clock::now() - *busy_since_) : 0.0);
}

Clock::time_point Queue::last_success() const {
  const std::lock_guard lock(mutex_);
  return last_success_;
}

std::uint64_t Queue::native_successes() const {
  Lock lock(mutex_);
  return native_successes_;
}

Outcome Queue::admit(Job& job) const {
  const Demand& demand = job.demand;
  if (is_closed_) return Outcome::kClosed;
  if (job.is_given_up) return Outcome::kCancelled;
  const Clock::time_point now = Clock::now();
  // Without estimates no job is refused.
  const double least = estimates_.least(demand.kind, demand.views, now);
  if (least > 0 && demand.deadline < Clock::time_point::max()) {
    const double needed = seconds_ahead(demand, now) + least, left = seconds_of(demand.deadline - now);
    if (needed > left) {
      job.refusal = {.needed = needed, .left = std::max(0.0, left)};
      return Outcome::kTooNear;
    }
  }
  if (lines_.has_place(demand.tenant)) return Outcome::kPending;
  const double retry = std::max(kLeastRetrySeconds, mean_seconds_ * static_cast<double>(lines_.size()));
  job.refusal = {.own = lines_.taken_by(demand.tenant), .all = lines_.size(), .retry_seconds = retry};
  return Outcome::kFull;
}

// The least time until a job can run: jobs before it may run in one batch, or may miss their deadlines.
double Queue::seconds_ahead(const Demand& demand, Clock::time_point now) const {
  double seconds = running_ ? rest_of_running(now) : 0.0;
  std::vector<std::uint64_t> counted;
  lines_.before(demand.tenant, demand.priority, [&](const Job& job) {
    const Demand& other = job.demand;
    if (other.batch != 0) {
      if (other.batch == demand.batch) return false;
      if (std::find(counted.begin(), counted.end(), other.batch) != counted.end()) return true;
      counted.push_back(other.batch);
    }
    const double least = estimates_.least(other.kind, other.views, now);
    seconds += std::max(0.0, std::min(least, seconds_of(other.deadline - now) - seconds));
    return true;
  });
  return seconds;
}

double Queue::rest_of_running(Clock::time_point now) const {
  double views = 0;
  Clock::time_point deadline = Clock::time_point::min();
  for (const auto& job : running_->jobs) {
    views += job->demand.views;
    deadline = std::max(deadline, job->demand.deadline);
  }
  const double least = estimates_.least(running_->jobs.front()->demand.kind, views, now);
  const double rest = std::min(least - seconds_of(now - running_->started), seconds_of(deadline - now));
  return std::max(0.0, rest);
}

// The fraction of a full batch that a job takes, by its size and by its time.
double Queue::fill(const Demand& demand) const {
  const std::optional<double> seconds = estimates_.typical(demand.kind, demand.views);
  return demand.batch == 0 || !seconds ? 1.0 : std::max(demand.fill, *seconds / kBatchSeconds);
}

// Moves waiting jobs that may run with those of a batch to it.
void Queue::fill_up(Jobs& jobs) {
  const Job& first = *jobs.front();
  if (first.demand.batch == 0) return;
  double filled = 0;
  for (const auto& job : jobs) filled += fill(job->demand);
  lines_.take_along(jobs, [&](Job& job) {
    if (job.demand.batch != first.demand.batch || job.is_native() != first.is_native()) return false;
    const double more = fill(job.demand);
    if (filled + more > 1) return false;
    filled += more;
    job.is_waiting = false;
    return true;
  });
}

void Queue::start_next() {
  Jobs jobs{lines_.take()};
  jobs.front()->is_waiting = false;
  fill_up(jobs);
  start(std::move(jobs));
}

void Queue::start(Jobs jobs) {
  running_.emplace(std::move(jobs));
  busy_since_ = running_->started;
  for (const auto& job : running_->jobs) job->started = running_->started;
}

// Whether a waiting job must not run before the work left to the device ends. The next job is not known until then, so
// one such job is enough.
bool Queue::must_settle() const {
  return left_ && !lines_.all([&](const Job& job) { return job.demand.sequence == left_->sequence; });
}

void Queue::run_native(Lock& lock) {
  std::vector<NativeJob*> jobs;
  bool ok = true;
  for (const auto& job : running_->jobs) {
    if (job->is_given_up) {
      job->outcome = Outcome::kCancelled;
    } else if (job->started >= job->demand.deadline) {
      job->outcome = Outcome::kLate;
    } else {
      jobs.push_back(static_cast<NativeJob*>(job.get()));
    }
    ok = ok && job->outcome == Outcome::kPending;
  }
  const StopRequest& stop = running_->stop;
  const Clock::time_point started = running_->started;
  lock.unlock();
  const auto [outcome, error] = jobs.empty() ? std::pair(Outcome::kDone, std::exception_ptr()) : run_all(jobs, stop);
  const double seconds = seconds_of(Clock::now() - started);
  lock.lock();
  for (NativeJob* job : jobs) {
    // The callers of a lost device are gone.
    if (job->outcome != Outcome::kPending) continue;
    job->error = error;
    job->outcome = outcome == Outcome::kCancelled && job->overdue_limit > 0 ? Outcome::kOverdue : outcome;
  }
  const auto takes_memory = [](const NativeJob* job) { return job->demand.bytes > 0; };
  const bool took_memory = std::any_of(jobs.begin(), jobs.end(), takes_memory);
  native_successes_ += outcome == Outcome::kDone && took_memory;
  end(lock, seconds, ok && outcome == Outcome::kDone);
  lock.lock();
}

// Charges the running batch, and wakes its waiters once the lock is released.
void Queue::end(Lock& lock, double seconds, bool ok) {
  const Jobs jobs = running_->jobs;
  running_.reset();
  count_busy();
  last_success_ = ok ? Clock::now() : Clock::time_point::min();
  mean_seconds_ += kNewest * (seconds - mean_seconds_);
  lines_.charge(seconds);
  double views = 0;
  for (const auto& job : jobs) {
    views += job->demand.views;
    job->ended = Clock::now();
  }
  if (ok) estimates_.add(jobs.front()->demand.kind, seconds / views);
  lock.unlock();
  for (const auto& job : jobs) job->has_ended.notify_all();
}

}  // namespace lumigrad::serving
