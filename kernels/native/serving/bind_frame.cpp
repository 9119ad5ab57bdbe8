// Python bindings of the frames of a stream that run without Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "serving/bound_job.h"
#include "serving/calls/records.h"
#include "serving/frame.h"
#include "serving/queue/account.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

// What all frames of a stream have in common.
struct Source {
  Queue& queue;
  const Renderer& renderer;
  const std::shared_ptr<Account> places, payloads;
  const std::shared_ptr<Records> records;
  const std::string method, request_id;  // Of its frames; ids end with their numbers.
  const std::string tenant;
  const int priority;
  const Clock::time_point deadline;
};

// A frame, from its request to the last byte of its reply.
class Frame {
 public:
  Frame(std::shared_ptr<const Source> source, nb::bytes raw, FrameRequest request, std::string engine)
      : source_(std::move(source)),
        raw_(std::move(raw)),
        request_(std::move(request)),
        engine_(std::move(engine)),
        place_(source_->places, source_->tenant),
        payload_(source_->payloads, source_->tenant) {
    const bool is_limited = request_.timeout_ms > 0;
    const Clock::time_point end = arrived_ + std::chrono::milliseconds(request_.timeout_ms);
    deadline_ = is_limited ? std::min(source_->deadline, end) : source_->deadline;
  }
  ~Frame() { release(); }

  // Reserves a place of a call and the payload, and makes the job; false if too little is left.
  bool prepare(const nb::object& render, const nb::object& staging, std::int64_t room_bytes) {
    const auto& bound = nb::cast<const BoundRender&>(render);
    payload_bytes_ = bound.render->payload_bytes;
    if (!bound.render->takes(request_.poses)) return false;
    if (place_.change(1) || payload_.change(static_cast<std::int64_t>(payload_bytes_))) return false;
    Demand demand = bound.demand;
    demand.tenant = source_->tenant;
    demand.priority = source_->priority;
    demand.deadline = deadline_;
    job_.emplace(source_->queue, render, std::move(request_.poses), source_->renderer, staging, std::move(demand),
                 room_bytes, frame_head(request_.number, bound.reply_bytes));
    return true;
  }

  // The next five need no interpreter's lock.
  void submit() {
    is_submitted_ = true;
    job_->submit();
  }
  void await() {
    try {
      is_submitted_ ? job_->await(arrived_) : job_->run(arrived_);
    } catch (...) {
      // The device: the general path meets its error, too.
      has_failed_ = true;
    }
    if (job_->is_done() && !has_failed_) record();
    place_.release();
  }
  void cancel() { job_->cancel(); }
  void end_late(Clock::time_point now, Clock::duration longest) {
    is_overlong_ = now - arrived_ > longest;
    if ((is_overlong_ || deadline_ <= now) && !has_started()) cancel();
  }
  bool has_started() const { return job_->has_started(); }

  void settle() {
    outcome_ = has_failed_ ? Outcome::kFailed : job_->settle();
    // Another job may take its place.
    if (outcome_ != Outcome::kDone) release();
  }
  void release() {
    place_.release();
    payload_.release();
  }

  const nb::bytes& raw() const { return raw_; }
  std::uint64_t number() const { return request_.number; }
  bool is_pipelined() const { return request_.is_pipelined; }
  double deadline() const { return deadline_ == Clock::time_point::max() ? INFINITY : moment(deadline_); }
  Outcome outcome() const { return outcome_; }
  // Whether it has waited longer than a call may take.
  bool is_overlong() const { return is_overlong_; }
  BoundJob& job() { return *job_; }

 private:
  static double moment(Clock::time_point at) { return seconds_of(at.time_since_epoch()); }
  // Before the reply is sent, so that whoever has it finds the frame in the metrics.
  void record() const {
    ShortRecord record{.method = source_->method,
                       .request_id = source_->request_id + std::to_string(request_.number),
                       .tenant = source_->tenant,
                       .engine = engine_};
    record.stages = job_->stage_times();
    record.milliseconds = job_->total();
    record.ended_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    record.bytes_sent = payload_bytes_;
    record.batch_views = job_->batch_views();
    source_->records->add(std::move(record));
  }

  const std::shared_ptr<const Source> source_;
  const nb::bytes raw_;
  const Clock::time_point arrived_ = Clock::now();
  FrameRequest request_;
  const std::string engine_;
  Clock::time_point deadline_;
  Reservation place_, payload_;
  std::optional<BoundJob> job_;
  std::size_t payload_bytes_ = 0;
  bool is_submitted_ = false, has_failed_ = false;
  std::atomic<bool> is_overlong_{false};
  Outcome outcome_ = Outcome::kPending;
};

// The frames of one stream that are on their way, in order. One thread adds frames, and one takes them.
class FrameLine {
 public:
  explicit FrameLine(Source source) : source_(std::make_shared<Source>(std::move(source))) {}

  bool expect(const nb::bytes& raw, std::string engine) {
    engine_ = std::move(engine);
    const std::optional<FrameRequest> request = read_frame_request({raw.c_str(), raw.size()});
    key_ = request ? request->key : std::string();
    return request.has_value();
  }

  bool takes(const nb::bytes& raw, std::uint64_t after) const { return read(raw, after).has_value(); }

  std::shared_ptr<Frame> begin(const nb::bytes& raw, std::uint64_t after, const nb::object& render,
                               const nb::object& staging, std::int64_t room_bytes) {
    std::optional<FrameRequest> request = read(raw, after);
    if (!request) return nullptr;
    auto frame = std::make_shared<Frame>(source_, raw, std::move(*request), engine_);
    if (!frame->prepare(render, staging, room_bytes)) return nullptr;
    if (frame->is_pipelined()) {
      nb::gil_scoped_release unlocked;
      frame->submit();
    }
    // The thread that waits for any other submits it, which it can without taking the interpreter's lock once more.
    {
      const std::lock_guard lock(mutex_);
      frames_.push_back(frame);
    }
    changed_.notify_all();
    return frame;
  }

  // The first frame, once it has ended; none if there is none for so long.
  std::shared_ptr<Frame> next(double seconds) {
    std::shared_ptr<Frame> first;
    {
      nb::gil_scoped_release unlocked;
      first = wait_for_first(seconds);
      if (first) first->await();
    }
    if (first) first->settle();
    return first;
  }
  // The first frame's reply has left.
  void remove() {
    std::shared_ptr<Frame> first;
    {
      const std::lock_guard lock(mutex_);
      first = std::move(frames_.front());
      frames_.pop_front();
    }
    changed_.notify_all();
    first->release();
  }

  // Waits until fewer frames than `count` are on their way.
  void wait_for_room(std::size_t count) {
    if (size() < count) return;
    nb::gil_scoped_release unlocked;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return frames_.size() < count; });
  }
  void cancel() {
    const std::lock_guard lock(mutex_);
    for (const auto& frame : frames_) frame->cancel();
  }
  void end_late(double longest_seconds) {
    const auto longest = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(longest_seconds));
    const std::lock_guard lock(mutex_);
    for (const auto& frame : frames_) frame->end_late(Clock::now(), longest);
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return frames_.size();
  }
  std::size_t started() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(frames_.begin(), frames_.end(), [](const auto& frame) { return frame->has_started(); }));
  }

 private:
  // A request of the kind with a larger number.
  std::optional<FrameRequest> read(const nb::bytes& raw, std::uint64_t after) const {
    std::optional<FrameRequest> request = read_frame_request({raw.c_str(), raw.size()});
    const bool is_next = request && request->number > after;
    return is_next && request->key == key_ ? std::move(request) : std::nullopt;
  }
  std::shared_ptr<Frame> wait_for_first(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !frames_.empty(); });
    return frames_.empty() ? nullptr : frames_.front();
  }

  const std::shared_ptr<const Source> source_;
  // Of the cameras of frames that are of the same kind; empty: no kind is known.
  std::string key_, engine_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Frame>> frames_;
};

void bind_frame(nb::module_& m) {
  nb::class_<Frame>(m, "PreparedFrame")
      .def_prop_ro("raw", &Frame::raw)
      .def_prop_ro("number", &Frame::number)
      .def_prop_ro("is_pipelined", &Frame::is_pipelined)
      .def_prop_ro("deadline", &Frame::deadline)
      .def_prop_ro("outcome", &Frame::outcome)
      .def_prop_ro("is_overlong", &Frame::is_overlong)
      .def(
          "take_reply", [](Frame& self) { return self.job().take_reply(); },
          nb::sig("def take_reply(self) -> bytes | None"), "The bytes of a FrameReply, once; None: it is not DONE.")
      .def_prop_ro("overdue_limit", [](Frame& self) { return self.job().overdue_limit(); });
}

}  // namespace

void bind_serving_frames(nb::module_& m) {
  bind_frame(m);
  nb::class_<FrameLine>(m, "FrameLine")
      .def(
          "__init__",
          [](FrameLine* self, Queue& queue, const Renderer& renderer, std::shared_ptr<Account> places,
             std::shared_ptr<Account> payloads, std::shared_ptr<Records> records, std::string method,
             std::string request_id, std::string tenant, int priority, double deadline) {
            new (self) FrameLine(Source{queue, renderer, std::move(places), std::move(payloads), std::move(records),
                                        std::move(method), std::move(request_id), std::move(tenant), priority,
                                        time_of(deadline)});
          },
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::kw_only(), "queue"_a, "renderer"_a, "places"_a,
          "payloads"_a, "records"_a, "method"_a, "request_id"_a, "tenant"_a, "priority"_a, "deadline"_a)
      .def("expect", &FrameLine::expect, "raw"_a, "engine"_a,
           "Take frames of a kind: requests that differ from this one in poses only. False: there is no kind of it.")
      .def("takes", &FrameLine::takes, "raw"_a, "after"_a, "Whether a frame is of the kind, with a larger number.")
      .def("begin", &FrameLine::begin, "raw"_a, "after"_a, "render"_a, "staging"_a.none(), "room_bytes"_a,
           nb::sig("def begin(self, raw: bytes, after: int, render: object, staging: object, room_bytes: int)"
                   " -> PreparedFrame | None"),
           "Begin a frame of the kind with a larger number; None: it is none, or has no room.")
      .def("next", &FrameLine::next, "seconds"_a, nb::sig("def next(self, seconds: float) -> PreparedFrame | None"),
           "Wait for the end of the first frame; None if there is none for so long.")
      .def("remove", &FrameLine::remove, "The reply of the first frame has left.")
      .def("wait_for_room", &FrameLine::wait_for_room, "count"_a, "Wait until fewer frames are on their way.")
      .def("cancel", &FrameLine::cancel, "Cancel all frames.")
      .def("end_late", &FrameLine::end_late, "longest_seconds"_a,
           "Cancel the frames that wait for the device although their time is over.")
      .def_prop_ro("started", &FrameLine::started, "The number of frames that the device has begun.")
      .def("__len__", &FrameLine::size);
}

}  // namespace lumigrad
