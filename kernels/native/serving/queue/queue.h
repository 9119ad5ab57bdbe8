// The queue of all jobs for the device's thread, native or in Python.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/threads.h"
#include "serving/job.h"
#include "serving/queue/estimates.h"
#include "serving/queue/lines.h"

namespace lumigrad::serving {

// Threads of calls submit jobs and wait until they end. The device's thread takes them in batches, in the order of
// `Lines`: native batches run within `take`, and Python's batches are returned. While the device's thread is idle, the
// thread of a call may run a small native job itself; one batch runs at a time. No function needs the GIL, and none
// takes it while it holds the queue's mutex: Python's jobs are destroyed after the mutex is released.
class Queue {
 public:
  explicit Queue(Places places) : lines_(places) {}
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Functions for the threads of calls.

  // Adds a job; if false, its outcome says why it was refused, and it may be submitted again.
  bool submit(const std::shared_ptr<Job>& job);
  // Waits until a submitted job has ended; at its deadline it leaves the queue, unless it has started.
  Outcome wait(Job& job);
  // Whether the device's thread has taken a job.
  bool has_started(const Job& job) const;
  // Submits a job and waits for it. If the device is idle and the job allows it, it runs on this thread.
  Outcome run(const std::shared_ptr<NativeJob>& job);
  // Cancels a job whose call has ended: removes it from the queue, or stops the kernels of its batch if the calls of
  // all jobs in the batch have ended and all are repeatable. A job that is submitted later is refused. On any thread.
  void cancel(Job& job);

  // Functions for the device's thread.

  enum class Next {
    kBatch,   // Run the returned jobs of Python, then call `finish`; until then this thread heeds the batch's
              // StopRequest.
    kSettle,  // Wait for the work that a job has left to the device, then call `settled`.
    kEnd,     // The queue is closed.
    kNone,    // No job without waiting or running a native batch.
  };
  Next take(Jobs& batch, bool may_wait = true);
  // Ends the batch: charges its time and wakes its waiters. `ok` is false if one of its jobs has failed.
  void finish(double seconds, bool ok);
  // Called by a running job that will end before the device has done its work: until then only jobs of the sequence
  // run. A native job passes the work, for which `take` then waits itself.
  void leave(std::uint64_t sequence, std::shared_ptr<LeftWork> work = nullptr);
  // Called once the device has done the work left to it: charges the time since `take` to the tenant that left it.
  void settled();

  // Functions for any thread.

  // Stops the running batch if it has taken longer than the limit, unless it is the worker's own.
  void stop_overdue(double limit_seconds);
  // Refuses waiting and new jobs; `take` ends.
  void close();
  // Called when the device is lost: threads that wait for the running batch stop waiting.
  void lose();

  std::size_t depth() const;
  std::size_t predicted_bytes() const;  // Bytes of waiting and running jobs.
  bool is_busy() const;                 // Whether a job runs or waits.
  // Seconds since the running batch started or its kernels last made progress; 0 if no batch runs.
  double held_seconds() const;
  // Seconds that the device's thread has worked; never falls.
  double busy_seconds() const;
  // When the last batch ended; the least time point if it failed.
  Clock::time_point last_success() const;
  // The number of native batches that have succeeded with device memory.
  std::uint64_t native_successes() const;

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
  double count_busy();

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
  std::uint64_t native_successes_ = 0;
};

}  // namespace lumigrad::serving
