// Python bindings of the queue. Jobs in Python are objects of subclasses of QueuedJob.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <string>
#include <utility>

#include "serving/queue/probe.h"
#include "serving/queue/queue.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

// A deadline that is further away counts as no deadline.
constexpr double kMostSeconds = 1e9;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Demand demand_of(std::string tenant, int priority, double remaining, std::uint64_t kind, double views,
                 std::size_t bytes, std::uint64_t batch, double fill, std::uint64_t sequence, bool is_repeatable,
                 bool is_own) {
  if (priority < 0 || priority >= kPriorities) throw nb::value_error("priority: expected 0, 1 or 2");
  const bool has_deadline = remaining < kMostSeconds;
  return {.tenant = std::move(tenant),
          .priority = priority,
          .deadline = has_deadline ? Clock::now() + duration_of(remaining) : Clock::time_point::max(),
          .kind = kind,
          .views = views,
          .bytes = bytes,
          .batch = batch,
          .fill = fill,
          .sequence = sequence,
          .repeatable = is_repeatable,
          .own = is_own};
}

template <class Class>
void demanding(Class& job) {
  job.def(
      "__init__",
      [](typename Class::Type* self, std::string tenant, int priority, double remaining, std::uint64_t kind,
         double views, std::size_t bytes, std::uint64_t batch, double fill, std::uint64_t sequence, bool is_repeatable,
         bool is_own) {
        new (self) typename Class::Type(demand_of(std::move(tenant), priority, remaining, kind, views, bytes, batch,
                                                  fill, sequence, is_repeatable, is_own));
      },
      "tenant"_a = "", "priority"_a = 1, "remaining"_a = INFINITY, "kind"_a = 0, "views"_a = 1.0, "bytes"_a = 0,
      "batch"_a = 0, "fill"_a = 0.0, "sequence"_a = 0, "is_repeatable"_a = false, "is_own"_a = false);
}

void bind_jobs(nb::module_& m) {
  nb::enum_<Outcome>(m, "Outcome")
      .value("PENDING", Outcome::kPending)
      .value("DONE", Outcome::kDone)
      .value("FAILED", Outcome::kFailed)
      .value("FULL", Outcome::kFull)
      .value("TOO_NEAR", Outcome::kTooNear)
      .value("CLOSED", Outcome::kClosed)
      .value("LATE", Outcome::kLate)
      .value("CANCELLED", Outcome::kCancelled)
      .value("OVERDUE", Outcome::kOverdue)
      .value("LOST", Outcome::kLost);
  nb::class_<Refusal>(m, "Refusal")
      .def_ro("own", &Refusal::own)
      .def_ro("all", &Refusal::all)
      .def_ro("retry_seconds", &Refusal::retry_seconds)
      .def_ro("needed", &Refusal::needed)
      .def_ro("left", &Refusal::left);
  nb::class_<Job> job(m, "QueuedJob");
  demanding(job);
  job.def_ro("outcome", &Job::outcome)
      .def_ro("refusal", &Job::refusal)
      .def_prop_ro("overdue_limit", [](const Job& self) { return self.overdue_limit.load(); })
      .def("give_up", [](Job& self) { self.is_given_up = true; })
      .def_prop_ro("started", [](const Job& self) { return seconds_of(self.started.time_since_epoch()); })
      .def_prop_ro("waited_seconds", [](const Job& self) { return seconds_of(self.started - self.queued); });
  nb::class_<ProbeJob, Job> probe(m, "ProbeJob");
  demanding(probe);
  probe.def_rw("seconds", &ProbeJob::seconds)
      .def_rw("asked_bytes", &ProbeJob::asked_bytes)
      .def_rw("room_bytes", &ProbeJob::room_bytes)
      .def_rw("fails", &ProbeJob::fails)
      .def_rw("anywhere", &ProbeJob::anywhere)
      .def_ro("thread", &ProbeJob::thread)
      .def_ro("together", &ProbeJob::together);
}

// Returns a list of Python's jobs; an empty list if work left to the device must be settled first; None if the queue is
// closed.
std::optional<nb::list> take(Queue& queue) {
  Jobs batch;
  Queue::Next next = queue.take(batch, false);
  if (next == Queue::Next::kNone) {
    nb::gil_scoped_release unlocked;
    next = queue.take(batch);
  }
  if (next == Queue::Next::kEnd) return std::nullopt;
  nb::list jobs;
  for (const auto& job : batch) jobs.append(nb::cast(job));
  return jobs;
}

Outcome wait(Queue& queue, Job& job) {
  nb::gil_scoped_release unlocked;
  return queue.wait(job);
}

Outcome run_probe(Queue& queue, const std::shared_ptr<ProbeJob>& job) {
  nb::gil_scoped_release unlocked;
  return queue.run(job);
}

}  // namespace

void bind_serving(nb::module_& m) {
  bind_jobs(m);
  nb::class_<Queue>(m, "Queue")
      .def(
          "__init__",
          [](Queue* self, std::size_t limit, std::size_t share, std::size_t kept) {
            new (self) Queue({limit, share, kept});
          },
          "limit"_a, "share"_a, "kept"_a)
      .def("submit", &Queue::submit)
      .def("wait", &wait)
      .def("run_probe", &run_probe)
      .def("cancel", &Queue::cancel)
      .def("take", &take)
      .def("finish", &Queue::finish, "seconds"_a, "ok"_a)
      .def("leave", [](Queue& self, std::uint64_t sequence) { self.leave(sequence); })
      .def("settled", &Queue::settled)
      .def("stop_overdue", &Queue::stop_overdue)
      .def("close", &Queue::close)
      .def("lose", &Queue::lose)
      .def_prop_ro("depth", &Queue::depth)
      .def_prop_ro("predicted_bytes", &Queue::predicted_bytes)
      .def_prop_ro("is_busy", &Queue::is_busy)
      .def_prop_ro("held_seconds", &Queue::held_seconds)
      .def_prop_ro("busy_seconds", &Queue::busy_seconds)
      .def_prop_ro("native_successes", &Queue::native_successes)
      .def_prop_ro("last_success", [](const Queue& self) {
        const Clock::time_point moment = self.last_success();
        return moment == Clock::time_point::min() ? -INFINITY : seconds_of(moment.time_since_epoch());
      });
  nb::class_<Estimates>(m, "Estimates")
      .def(nb::init<>())
      .def("add", [](Estimates& self, std::uint64_t kind, double seconds,
                     double now) { self.add(kind, seconds, Clock::time_point(duration_of(now))); })
      .def("typical", [](const Estimates& self, std::uint64_t kind, double views,
                         double now) { return self.typical(kind, views, Clock::time_point(duration_of(now))); })
      .def("least", [](const Estimates& self, std::uint64_t kind, double views,
                       double now) { return self.least(kind, views, Clock::time_point(duration_of(now))); })
      .def("__len__", &Estimates::size);
}

}  // namespace lumigrad
