// Jobs for the device's thread: what the queue knows of each job, how jobs end, and jobs that run without Python.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

namespace lumigrad::serving {

using Clock = std::chrono::steady_clock;

inline double seconds_of(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

constexpr int kPriorities = 3;  // 0 is the most urgent.

// The predicted cost of a job, and its place in the queue. Equal numbers mean the same kind, batch or sequence; 0 means
// none.
struct Demand {
  std::string tenant;
  int priority = 1;
  Clock::time_point deadline = Clock::time_point::max();
  std::uint64_t kind = 0;  // Jobs of one kind take about the same time per view.
  double views = 1;
  std::size_t bytes = 0;       // Device memory.
  std::uint64_t batch = 0;     // Jobs of one batch may run together.
  double fill = 0;             // The fraction of a full batch that the job takes.
  std::uint64_t sequence = 0;  // Jobs of one sequence may run while the device still works on the previous one.
  bool repeatable = false;     // The job changes only its result, so that its kernels may be stopped at any time.
  bool own = false;            // The worker's own job, without a time limit.
};

// How a job has left the queue.
enum class Outcome {
  kPending,    // The job has not left.
  kDone,       // The job has run.
  kFailed,     // The job has run, and an exception was thrown.
  kFull,       // Refused: no place in the queue.
  kTooNear,    // Refused: it cannot end before its deadline.
  kClosed,     // Refused: the queue is closed.
  kLate,       // The job's deadline passed before it could run.
  kCancelled,  // The call ended before the job could run, or while it ran, and the kernels were stopped.
  kOverdue,    // The kernels were stopped, because they took longer than a call may.
  kLost,       // The device was lost while it ran.
};

// Numbers for the error of a refused job.
struct Refusal {
  std::size_t own = 0, all = 0;  // kFull: places that the job's tenant and all tenants have taken.
  double retry_seconds = 0;      // kFull.
  double needed = 0, left = 0;   // kTooNear: seconds.
};

class Job : public std::enable_shared_from_this<Job> {
 public:
  explicit Job(Demand demand) : demand(std::move(demand)) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  virtual bool is_native() const { return false; }

  const Demand demand;

  // Written by the queue under its lock; may be read once the job has ended, or by the device's thread while it runs.
  Clock::time_point queued{}, started{}, ended{};
  Outcome outcome = Outcome::kPending;
  Refusal refusal;
  bool is_waiting = false;
  std::condition_variable has_ended;

  // Whether nobody waits for the kernels any more, because the call has ended or the job has failed.
  std::atomic<bool> is_given_up{false};
  // The limit, in seconds, if the job was stopped because it took longer; otherwise 0.
  std::atomic<double> overdue_limit{0};
};

// Work that a job has left to the device.
class LeftWork {
 public:
  virtual ~LeftWork() = default;
  // Waits until the work ends, whether it succeeds or fails.
  virtual void wait() noexcept = 0;
};

// A job that needs no Python: it runs on the device's thread without the GIL.
class NativeJob : public Job {
 public:
  using Job::Job;
  bool is_native() const final { return true; }

  // Runs all jobs of a batch, whose first job is this one; a job that cannot be batched is alone in its batch. Heeds a
  // StopRequest, and takes no more memory from the pools than the room of the batch. If it throws, all jobs have
  // failed. It may still be running after `Queue::run` has returned (kLost): everything that it uses must live as long
  // as the jobs, which the queue keeps alive meanwhile.
  virtual void run(std::span<NativeJob* const> batch) = 0;

  // Whether the job may run on the thread that waits for it while nothing else runs or waits: it needs nothing of the
  // device's thread, and takes less time than a switch of threads.
  virtual bool runs_anywhere() const { return false; }

  // The memory that the job may take from the pools, including demand.bytes (see common/room.h).
  std::int64_t room_bytes = 0;
  std::exception_ptr error;  // kFailed.
};

}  // namespace lumigrad::serving
