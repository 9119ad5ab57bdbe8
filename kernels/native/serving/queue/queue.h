// The one queue of jobs for the device's thread, of Python's jobs and of those that run without Python.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/threads.h"
#include "serving/job.h"
#include "serving/queue/estimates.h"
#include "serving/queue/lines.h"

namespace lumigrad::serving {

// Threads of calls submit jobs and wait for their ends. The device's thread takes them in batches, in the order of
// `Lines`: native batches run within `take`, and Python's are returned. While it has nothing to do, a thread of a call
// may run a small native job itself, as if it were the device's: one batch runs at a time. No function needs the
// interpreter's lock, and none takes it while it holds the queue's: jobs of Python are destroyed without that.
class Queue {
 public:
  explicit Queue(Places places) : lines_(places) {}
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Functions for the threads of calls.

  // Adds a job; false: its outcome says why it was refused, and it may be submitted again.
  bool submit(const std::shared_ptr<Job>& job);
  // Waits until a job that was submitted has ended; at its deadline it leaves the queue, unless it has started.
  Outcome wait(Job& job);
  // Whether the device's thread has taken a job.
  bool has_started(const Job& job) const;
  // Both. A job that may is run on this thread if the device is idle.
  Outcome run(const std::shared_ptr<NativeJob>& job);
  // The call of a job has ended: removes it from the queue, or stops the kernels of its batch if the calls of all its
  // jobs have ended and all are repeatable. A job that was not submitted yet will be refused. On any thread.
  void cancel(Job& job);

  // Functions for the device's thread.

  enum class Next {
    kBatch,   // Python's jobs wait to be run; `finish` follows, and until then this thread heeds the batch's
              // StopRequest.
    kSettle,  // Work that a job has left to the device must end before the next job; `settled` follows.
    kEnd,     // The queue is closed.
    kNone,    // Not without waiting, or without running a native batch.
  };
  Next take(Jobs& batch, bool may_wait = true);
  // The batch has ended: charges its time, and wakes those that wait. Without `ok` a job of it has failed.
  void finish(double seconds, bool ok);
  // The running job ends before the device has done its work: only jobs of the sequence run before that. A native job
  // names the work, for which `take` then waits itself.
  void leave(std::uint64_t sequence, std::shared_ptr<LeftWork> work = nullptr);
  // The device has done what was left: charges the time since `take` to the tenant that has left it.
  void settled();

  // Functions for any thread.

  // Stops the running batch if it has taken longer, unless it is the worker's own.
  void stop_overdue(double limit_seconds);
  // Refuses waiting and new jobs; `take` ends.
  void close();
  // The device is lost: those who wait for the running batch wait no longer.
  void lose();

  std::size_t depth() const;
  std::size_t predicted_bytes() const;  // Bytes of waiting and running jobs.
  bool is_busy() const;                 // Whether a job runs or waits.
  // Seconds since the running batch, or the progress that its kernels last made; 0: none runs.
  double held_seconds() const;
  // Seconds that the device's thread has worked.
  double busy_seconds() const;
  // When a batch last ended; the least time point if it failed.
  Clock::time_point last_success() const;

 private:
  struct Running {
    explicit Running(Jobs taken) : jobs(std::move(taken)) {}

    const Jobs jobs;
    const Clock::time_point started = Clock::now();
    StopRequest stop;
  };
  struct Left {
    std::uint64_t sequence;
    std::string tenant;
    int priority;
    std::shared_ptr<LeftWork> work;
  };
  using Lock = std::unique_lock<std::mutex>;

  bool run_here(const std::shared_ptr<NativeJob>& job);
  Outcome admit(Job& job) const;
  std::shared_ptr<Job> remove(Job& job, Outcome outcome);
  double seconds_ahead(const Demand& demand, Clock::time_point now) const;
  double rest_of_running(Clock::time_point now) const;
  double fill(const Demand& demand) const;
  void fill_up(Jobs& jobs);
  void start_next();
  void start(Jobs jobs);
  bool must_settle() const;
  void run_native(Lock& lock);
  void end(Lock& lock, double seconds, bool ok);

  mutable std::mutex mutex_;  // Guards all members that follow.
  std::condition_variable changed_;
  Lines lines_;
  Estimates estimates_;
  double mean_seconds_ = 0.01;  // Mean time of batches.
  bool is_closed_ = false;
  std::optional<Running> running_;
  std::optional<Left> left_, settling_;
  double busy_seconds_ = 0;
  std::optional<Clock::time_point> busy_since_;
  Clock::time_point last_success_ = Clock::time_point::min();
};

}  // namespace lumigrad::serving
