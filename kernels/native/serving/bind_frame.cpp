// Python bindings of the frames of a stream that run without Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

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
#include <tuple>
#include <utility>

#include "serving/bound_job.h"
#include "serving/calls/progress.h"
#include "serving/calls/records.h"
#include "serving/frame.h"
#include "serving/queue/account.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

// The most frames of one stream that may be in progress or wait to be sent.
constexpr std::size_t kMostFrames = 4;

// Data that all frames of a stream share.
struct Source {
  Queue& queue;
  const Renderer& renderer;
  const std::shared_ptr<Account> places, payloads;
  const std::shared_ptr<Records> records;
  const std::string method, request_id;  // Method and id of the frames; ids end with their numbers.
  const std::string tenant;
  const int priority;
  const Clock::time_point deadline;
};

// A place in a lane for the payload of a frame: the lease, the memory, and the reply's bytes before its timings.
using Place = std::tuple<nb::object, HostBytes, nb::bytes>;
// The means of drawing a frame: its renderer, staging, room for kernels, and its place if it has a lane.
using Means = std::tuple<nb::object, nb::object, std::int64_t, std::optional<Place>>;

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
  ~Frame() {
    try {
      release();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the lease of a frame");
    }
  }

  // Reserves a place of a call and the payload, and makes the job; false if too little is left.
  bool prepare(const Means& means) {
    const auto& [render, staging, room_bytes, place] = means;
    const auto& bound = nb::cast<const BoundRender&>(render);
    std::optional<Outside> outside;
    if (place) {
      const auto& [lease, memory, head] = *place;
      lease_ = lease;
      outside = Outside{memory, {head.c_str(), head.size()}};
    }
    const std::size_t payload_bytes = bound.render->payload_bytes;
    bytes_sent_ = outside ? bound.render->output_bytes() : payload_bytes;
    if (!bound.render->takes(request_.poses)) return false;
    if (place_.change(1) || payload_.change(static_cast<std::int64_t>(payload_bytes))) return false;
    Demand demand = bound.demand;
    demand.tenant = source_->tenant;
    demand.priority = source_->priority;
    demand.deadline = deadline_;
    job_.emplace(source_->queue, render, std::move(request_.poses), source_->renderer, staging, std::move(demand),
                 room_bytes, frame_head(request_.number, bound.reply_bytes(outside)), outside);
    return true;
  }

  // The next five functions do not need the GIL.
  void submit() {
    is_submitted_ = true;
    job_->submit();
  }
  void await() {
    try {
      is_submitted_ ? job_->await(arrived_) : job_->run(arrived_);
    } catch (...) {
      // The device failed: the general path gets the same error.
      has_failed_ = true;
    }
    if (job_->is_done() && !has_failed_) record();
    place_.release();
  }
  void cancel() { job_->cancel(); }
  void end_overlong(Clock::duration longest) {
    is_overlong_ = Clock::now() - arrived_ > longest;
    if (is_overlong_ && !has_started()) cancel();
  }
  bool has_started() const { return job_->has_started(); }

  void settle() {
    outcome_ = has_failed_ ? Outcome::kFailed : job_->settle();
    // The general path needs the place and the memory for another job.
    if (outcome_ != Outcome::kDone) release();
  }
  // Ends the lease: nothing writes to the lane's memory any more. It is returned unless the reply was `delivered`.
  void end_lease(bool delivered) {
    if (const nb::object lease = std::move(lease_)) lease.attr("end")("delivered"_a = delivered);
  }
  void release() {
    place_.release();
    payload_.release();
    end_lease(false);
  }

  const nb::bytes& raw() const { return raw_; }
  std::uint64_t number() const { return request_.number; }
  bool is_pipelined() const { return request_.is_pipelined; }
  double deadline() const { return deadline_ == Clock::time_point::max() ? INFINITY : moment(deadline_); }
  Outcome outcome() const { return outcome_; }
  // Whether the frame has waited longer than a call may take.
  bool is_overlong() const { return is_overlong_; }
  BoundJob& job() { return *job_; }

 private:
  static double moment(Clock::time_point at) { return seconds_of(at.time_since_epoch()); }
  // Records the frame before the reply is sent, so that a caller with the reply finds the frame in the metrics.
  void record() const {
    ShortRecord record;
    record.method = source_->method;
    record.request_id = source_->request_id + std::to_string(request_.number);
    record.tenant = source_->tenant;
    record.engine = engine_;
    record.stages = job_->stage_times();
    record.milliseconds = job_->total();
    record.ended_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    record.bytes_sent = bytes_sent_;
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
  nb::object lease_;  // Lease of a lane's memory; null if there is none or it has ended.
  std::optional<BoundJob> job_;
  std::size_t bytes_sent_ = 0;
  bool is_submitted_ = false, has_failed_ = false;
  std::atomic<bool> is_overlong_{false};
  Outcome outcome_ = Outcome::kPending;
};

// Names of methods of a stream, which is a Python object.
struct Names {
  PyObject* prepared = PyUnicode_InternFromString("prepared");
  PyObject* send_others = PyUnicode_InternFromString("send_others");
  PyObject* push = PyUnicode_InternFromString("push");
  PyObject* send_due = PyUnicode_InternFromString("send_due");
};

const Names& names() {
  static const Names kNames;
  return kNames;
}

nb::object called(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

// The frames of one stream that are in progress, in order. One thread adds them, and also sends the replies while the
// caller waits for each frame; pipelined frames get a second thread that sends. Functions need the GIL, which guards
// all members that `mutex_` does not.
class FrameLine {
 public:
  FrameLine(Source source, std::shared_ptr<Progress> progress)
      : source_(std::make_shared<Source>(std::move(source))), progress_(std::move(progress)) {}

  bool expect(const nb::bytes& raw, std::string engine) {
    engine_ = std::move(engine);
    std::optional<FrameRequest> request = read_frame_request({raw.c_str(), raw.size()});
    if (request) key_ = std::move(request->key);
    return request.has_value();
  }
  void forget() { key_.clear(); }

  // Receives the requests of a stream, and answers frames of the expected kind. Returns the first other request, or the
  // first failed frame, which the caller must answer and remove; none if there are no more requests.
  nb::object next(nb::handle requests, nb::handle stream) {
    while (true) {
      nb::object raw = receive(requests);
      std::shared_ptr<Frame> frame = raw.is_none() ? nullptr : begun(raw, stream);
      if (!frame) return raw;
      if (has_sender_) continue;
      has_sender_ = frame->is_pipelined();
      if (has_sender_) {
        called(PyObject_CallMethodNoArgs(stream.ptr(), names().send_others));
      } else if (!sent(frame, stream)) {
        return nb::cast(frame);
      }
    }
  }
  // Sends the replies of frames until no frame comes for a while, or the caller waits for each frame again. Returns the
  // first failed frame, which the caller must answer and remove, or none.
  nb::object send(nb::handle stream, double linger_seconds) {
    while (true) {
      const std::shared_ptr<Frame> frame = wait_for_first(linger_seconds);
      if (frame && !sent(frame, stream)) return nb::cast(frame);
      has_sender_ = (frame && frame->is_pipelined()) || size() > 0;
      if (!has_sender_) return nb::none();
    }
  }
  // Removes the first frame once its reply has been sent.
  void remove(nb::handle stream) {
    std::shared_ptr<Frame> first;
    {
      const std::lock_guard lock(mutex_);
      first = std::move(frames_.front());
      frames_.pop_front();
    }
    changed_.notify_all();
    first->release();
    progress_->renew();
    if (is_closed) called(PyObject_CallMethodNoArgs(stream.ptr(), names().send_due));
  }

  // Waits until fewer than `count` frames are in progress.
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
  void end_overlong(double longest_seconds) {
    const auto longest = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(longest_seconds));
    const std::lock_guard lock(mutex_);
    for (const auto& frame : frames_) frame->end_overlong(longest);
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

  // Number of the last frame of any kind; only larger numbers may follow.
  std::optional<std::uint64_t> number;
  // Frames from this number on are not answered: the worker is stopping.
  std::uint64_t refused_from = UINT64_MAX;
  // Whether no further frame may begin.
  bool is_closed = false;

 private:
  nb::object receive(nb::handle requests) {
    progress_->receiving.begin();
    PyObject* raw = PyIter_Next(requests.ptr());
    progress_->receiving.end();
    progress_->has_begun = true;
    progress_->renew();
    if (raw == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
    return raw == nullptr ? nb::none() : nb::steal(raw);
  }

  // Adds the frame of a request to the line and returns it; null if the request takes the general path.
  std::shared_ptr<Frame> begun(const nb::object& raw, nb::handle stream) {
    if (key_.empty() || !nb::isinstance<nb::bytes>(raw)) return nullptr;
    const auto bytes = nb::borrow<nb::bytes>(raw);
    std::optional<FrameRequest> request = read_frame_request({bytes.c_str(), bytes.size()});
    if (!request || !number || request->number <= *number || request->key != key_) return nullptr;
    wait_for_room(kMostFrames);
    const nb::str lane(request->lane.c_str(), request->lane.size());
    const nb::object found = called(PyObject_CallMethodOneArg(stream.ptr(), names().prepared, lane.ptr()));
    if (found.is_none()) return nullptr;
    auto frame = std::make_shared<Frame>(source_, bytes, std::move(*request), engine_);
    if (!frame->prepare(nb::cast<Means>(found)) || is_closed) return nullptr;
    // Other frames are submitted by the thread that waits for them, which need not take the GIL once more.
    if (frame->is_pipelined()) frame->submit();
    number = frame->number();
    {
      const std::lock_guard lock(mutex_);
      frames_.push_back(frame);
    }
    changed_.notify_all();
    return frame;
  }

  std::shared_ptr<Frame> wait_for_first(double seconds) {
    nb::gil_scoped_release unlocked;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !frames_.empty(); });
    return frames_.empty() ? nullptr : frames_.front();
  }

  // Waits for the first frame and sends its reply; false if the frame has failed.
  bool sent(const std::shared_ptr<Frame>& first, nb::handle stream) {
    {
      nb::gil_scoped_release unlocked;
      first->await();
    }
    first->settle();
    const nb::object reply = first->job().take_reply();
    if (reply.is_none()) return false;
    try {
      const bool is_refused = first->number() >= refused_from;
      first->end_lease(!is_refused);
      if (!is_refused) push(reply, stream);
    } catch (...) {
      // Later frames must not wait for this one.
      remove(stream);
      throw;
    }
    remove(stream);
    return true;
  }
  void push(const nb::object& reply, nb::handle stream) {
    progress_->sending.begin();
    PyObject* pushed = PyObject_CallMethodOneArg(stream.ptr(), names().push, reply.ptr());
    progress_->sending.end();
    called(pushed);
    progress_->sending.moved(static_cast<std::size_t>(PyBytes_GET_SIZE(reply.ptr())));
  }

  const std::shared_ptr<const Source> source_;
  const std::shared_ptr<Progress> progress_;
  // Key of the frames to expect, and their engine; empty until a frame was expected.
  std::string key_, engine_;
  // Whether a second thread sends the replies.
  bool has_sender_ = false;
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
             std::string request_id, std::string tenant, int priority, double deadline,
             std::shared_ptr<Progress> progress) {
            new (self) FrameLine(
                Source{queue, renderer, std::move(places), std::move(payloads), std::move(records), std::move(method),
                       std::move(request_id), std::move(tenant), priority, time_of(deadline)},
                std::move(progress));
          },
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::kw_only(), "queue"_a, "renderer"_a, "places"_a,
          "payloads"_a, "records"_a, "method"_a, "request_id"_a, "tenant"_a, "priority"_a, "deadline"_a, "progress"_a)
      .def("expect", &FrameLine::expect, "raw"_a, "engine"_a,
           "Take frames of a kind: requests that differ from this one in poses only. False: there is no kind of it.")
      .def("forget", &FrameLine::forget, "Take no frames any more.")
      .def("next", &FrameLine::next, "requests"_a, "stream"_a,
           nb::sig("def next(self, requests: object, stream: object) -> bytes | PreparedFrame | None"),
           "Receive requests, and answer those of the kind; returns the first other one, or a frame that has failed.")
      .def("send", &FrameLine::send, "stream"_a, "linger_seconds"_a,
           nb::sig("def send(self, stream: object, linger_seconds: float) -> PreparedFrame | None"),
           "Send replies as long as they come; returns a frame that has failed.")
      .def("remove", &FrameLine::remove, "stream"_a, "The reply of the first frame has left.")
      .def("wait_for_room", &FrameLine::wait_for_room, "count"_a, "Wait until fewer frames are on their way.")
      .def("cancel", &FrameLine::cancel, "Cancel all frames.")
      .def("end_overlong", &FrameLine::end_overlong, "longest_seconds"_a,
           "Cancel the frames that have waited longer for the device.")
      .def_rw("number", &FrameLine::number, nb::arg().none(),
              "Of the last frame of any kind; only larger ones may follow.")
      .def_rw("refused_from", &FrameLine::refused_from, "Frames from this number on are not answered.")
      .def_rw("is_closed", &FrameLine::is_closed, "Whether no further frame begins.")
      .def_prop_ro("started", &FrameLine::started, "The number of frames that the device has begun.")
      .def("__len__", &FrameLine::size);
}

}  // namespace lumigrad
