// Python bindings of calls that a shortcut may answer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/bound_job.h"
#include "serving/calls/drawing_parts.h"
#include "serving/calls/progress.h"
#include "serving/calls/short_calls.h"
#include "serving/passes/bound_call.h"
#include "serving/queue/account.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

constexpr std::string_view kRequestId = "x-request-id", kPriority = "lumigrad-priority",
                           kMessageBytes = "lumigrad-message-bytes", kLane = "lumigrad-lane";
constexpr std::array<std::string_view, kPriorities> kPriorityNames{"interactive", "normal", "batch"};
constexpr std::size_t kMostDigits = 18, kMostIdCharacters = 64;

// Checked facts from the metadata of a call.
struct Facts {
  std::string request_id;
  std::string lane_name;  // Empty without a lane.
  int priority = 1;
  std::optional<std::size_t> message_bytes;
};

std::optional<std::string_view> text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return std::string_view(text, static_cast<std::size_t>(size));
}

bool is_request_id(std::string_view text) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._:-").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kMostIdCharacters && std::all_of(text.begin(), text.end(), is_allowed);
}

std::optional<std::size_t> number_of(std::string_view text) {
  if (text.empty() || text.size() > kMostDigits) return std::nullopt;
  std::size_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = 10 * number + static_cast<std::size_t>(c - '0');
  }
  return number;
}

// Reads one entry; false if the call must take the general path, which reports the error.
bool take(std::string_view key, PyObject* value, bool& has_priority, Facts& facts) {
  const std::optional<std::string_view> text = text_of(value);
  if (key == kLane) {
    if (!text || text->empty() || !facts.lane_name.empty()) return false;
    facts.lane_name = *text;
  } else if (key == kRequestId) {
    // The last request id counts.
    facts.request_id = text && is_request_id(*text) ? std::string(*text) : std::string();
  } else if (key == kPriority) {
    const auto found = std::find(kPriorityNames.begin(), kPriorityNames.end(), text.value_or(""));
    if (has_priority || found == kPriorityNames.end()) return false;
    has_priority = true;
    facts.priority = static_cast<int>(found - kPriorityNames.begin());
  } else if (key == kMessageBytes && !facts.message_bytes) {
    facts.message_bytes = number_of(text.value_or(""));
    return facts.message_bytes.has_value();
  }
  return true;
}

std::optional<Facts> facts_of(nb::handle metadata) {
  Facts facts;
  bool has_priority = false;
  if (metadata.is_none()) return facts;
  if (!PyTuple_Check(metadata.ptr())) return std::nullopt;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(metadata.ptr()); ++i) {
    PyObject* entry = PyTuple_GET_ITEM(metadata.ptr(), i);
    if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != 2) return std::nullopt;
    const std::optional<std::string_view> key = text_of(PyTuple_GET_ITEM(entry, 0));
    if (!key || !take(*key, PyTuple_GET_ITEM(entry, 1), has_priority, facts)) return std::nullopt;
  }
  return facts;
}

std::string random_id() {
  // Ids only have to differ from other ids in the log. The GIL guards the generator.
  static std::mt19937_64 random{std::random_device{}()};
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id(16, '0');
  std::uint64_t bits = random();
  for (char& digit : id) {
    digit = kDigits[bits & 15];
    bits >>= 4;
  }
  return id;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double monotonic(Clock::time_point moment) {
  return moment == Clock::time_point::max() ? INFINITY : seconds_of(moment.time_since_epoch());
}

nb::object called(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

// Method names of gRPC's contexts.
struct Names {
  PyObject* metadata = PyUnicode_InternFromString("invocation_metadata");
  PyObject* remaining = PyUnicode_InternFromString("time_remaining");
  PyObject* add_callback = PyUnicode_InternFromString("add_callback");
  PyObject* set_trailing = PyUnicode_InternFromString("set_trailing_metadata");
  PyObject* request_id = PyUnicode_InternFromString(kRequestId.data());
  PyObject* end = PyUnicode_InternFromString("end");
};

const Names& names() {
  static const Names kNames;
  return kNames;
}

// A gRPC call.
class BoundShortCall final : public ShortCall {
 public:
  BoundShortCall(std::shared_ptr<ShortCalls> calls, nb::object context)
      : context(std::move(context)), calls_(std::move(calls)) {}
  ~BoundShortCall() {
    calls_->hand_over(*this);
    release();
    calls_->end(*this);
  }

  // Waits for the next message; None if there are no more, or the caller is gone.
  nb::object receive(nb::handle requests) {
    progress.receiving.begin();
    PyObject* message = PyIter_Next(requests.ptr());
    progress.receiving.end();
    progress.has_begun = message != nullptr;
    if (message != nullptr) return nb::steal(message);
    if (PyErr_Occurred() == nullptr) return nb::none();
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    // gRPC's error refers to itself and, through its traceback, to the frames of the call. They refer to this object,
    // and it to the call, which the garbage collector cannot see: the call and its stream would stay forever.
    const nb::python_error error;
    PyException_SetTraceback(error.value().ptr(), Py_None);
    return nb::none();
  }

  // Renders a request and returns the engine's reply, or None if that fails: `outcome` says why. If `memory` is given,
  // it holds the payload, and the reply begins with `head`.
  nb::object draw(const DrawingParts& parts, const nb::object& render, std::vector<CameraPose> poses,
                  const nb::object& staging, std::int64_t room_bytes, const std::string& engine,
                  const std::optional<HostBytes>& memory = {}, const nb::bytes& head = nb::bytes("")) {
    const auto& bound = nb::cast<const BoundRender&>(render);
    const std::size_t bytes = bound.render->payload_bytes;
    outcome = Outcome::kFull;
    payload_.emplace(parts.payloads, tenant);
    if ((!memory && bytes > message_bytes) || !bound.render->takes(poses)) return nb::none();
    if (payload_->change(static_cast<std::int64_t>(bytes))) return nb::none();
    outcome = Outcome::kPending;
    Demand demand = bound.demand;
    demand.tenant = tenant;
    demand.priority = priority;
    demand.deadline = deadline;
    queue_ = parts.queue;
    std::optional<Outside> outside;
    if (memory) outside = Outside{*memory, {head.c_str(), head.size()}};
    job_ = std::make_unique<BoundJob>(nb::cast<Queue&>(queue_), render, std::move(poses), *parts.renderer, staging,
                                      std::move(demand), room_bytes, std::string_view{}, outside);
    if (has_ended) job_->cancel();
    {
      nb::gil_scoped_release unlocked;
      job_->run(arrived);
      if (job_->is_done()) leave(drawn(engine, memory ? bound.render->output_bytes() : bytes));
    }
    outcome = job_->settle();
    if (outcome != Outcome::kDone) {
      payload_->release();
      return nb::none();
    }
    begin_reply();
    name_request();
    return job_->take_reply();
  }
  // Renders a request without a lane if `parts` knows its kind. Returns None, and `outcome` is kPending, if not.
  nb::object draw_known(DrawingParts& parts, const nb::bytes& raw) {
    std::optional<RenderRequest> request = read_render_request({raw.c_str(), raw.size()});
    const KnownRender* found = request && lane_name.empty() ? parts.find(*request) : nullptr;
    if (found == nullptr || found->message_bytes > message_bytes) return nb::none();
    const nb::object render = found->render();
    if (render.is_none()) return nb::none();
    // Allocating may run other calls, which may forget the kind.
    const KnownRender known = *found;
    const nb::object staging = parts.staging.is_none() ? nb::none() : nb::object(parts.staging(render));
    return draw(parts, render, std::move(request->poses), staging, known.room_bytes, known.engine);
  }
  // Runs the job of `call`, a BoundCall, for this call.
  Outcome run(nb::object call) {
    call_ = std::move(call);
    BoundCall& bound = nb::cast<BoundCall&>(call_);
    outcome = Outcome::kPending;
    if (has_ended) bound.end();
    outcome = bound.run(monotonic(arrived));
    return outcome;
  }
  // Records that the call was answered with the reply of its job.
  void answered(std::string engine, std::string operation, std::size_t received, std::size_t sent, int batch_views) {
    ShortRecord record;
    record.engine = std::move(engine);
    record.operation = std::move(operation);
    record.stages = nb::cast<const BoundCall&>(call_).stage_times();
    record.bytes_received = received;
    record.bytes_sent = sent;
    record.batch_views = batch_views;
    leave(std::move(record));
    begin_reply();
    name_request();
  }
  bool begin_announcing() { return calls_->begin_announcing(*this); }
  void announced() { calls_->announced(*this); }
  // Waits while something is being sent ahead of the reply, and lets nothing more be.
  void begin_reply() {
    if (calls_->begin_reply(*this)) return;
    nb::gil_scoped_release unlocked;
    calls_->wait_announced(*this);
  }
  void hand_over() { calls_->hand_over(*this); }
  void release() { calls_->release(*this); }
  void end() {
    calls_->end(*this);
    if (call_.is_valid()) nb::cast<BoundCall&>(call_).end();
    if (!job_) return;
    if (outcome == Outcome::kPending) job_->cancel();
    payload_->release();
  }

  bool has_started() const {
    return (job_ && job_->has_started()) || (call_.is_valid() && nb::cast<const BoundCall&>(call_).has_started());
  }
  double overdue_limit() const { return job_ ? job_->overdue_limit() : 0; }

  const nb::object context;
  std::string lane_name;  // Empty without a lane.
  Outcome outcome = Outcome::kPending;
  Progress progress;
  // The request as read by native code, for the path that continues the call, or None.
  nb::object request = nb::none();
  std::string why_cancelled;

 private:
  ShortRecord drawn(const std::string& engine, std::size_t bytes_sent) const {
    ShortRecord record;
    record.engine = engine;
    record.stages = job_->stage_times();
    record.bytes_sent = bytes_sent;
    record.batch_views = job_->batch_views();
    return record;
  }
  // Records the call, whose reply may then be sent. Does not need the GIL.
  void leave(ShortRecord record) {
    record.method = method;
    record.request_id = request_id;
    record.tenant = tenant;
    record.milliseconds = 1e3 * seconds_of(Clock::now() - arrived);
    record.ended_at = seconds_since_1970();
    calls_->leave(*this, std::move(record));
  }
  // Tells the caller the id of the request after the reply.
  void name_request() {
    const nb::tuple after = nb::make_tuple(nb::make_tuple(nb::handle(names().request_id), request_id));
    called(PyObject_CallMethodOneArg(context.ptr(), names().set_trailing, after.ptr()));
  }

  const std::shared_ptr<ShortCalls> calls_;
  nb::object queue_;
  std::optional<Reservation> payload_;
  std::unique_ptr<BoundJob> job_;
  nb::object call_;  // A BoundCall, or none.
};

// Admits a call of a tenant; None if the call takes the general path, which reports a refusal.
nb::object admit(const std::shared_ptr<ShortCalls>& calls, std::string method, std::string tenant,
                 const nb::object& context, std::size_t usual_bytes, std::size_t most_bytes, bool takes_lanes) {
  const Clock::time_point arrived = Clock::now();
  std::optional<Facts> facts = facts_of(called(PyObject_CallMethodNoArgs(context.ptr(), names().metadata)));
  if (!facts || (!takes_lanes && !facts->lane_name.empty())) return nb::none();
  auto call = std::make_unique<BoundShortCall>(calls, context);
  call->method = std::move(method);
  call->tenant = std::move(tenant);
  call->arrived = arrived;
  // The clock was read first, so that a pause in between makes the deadline earlier than the caller's, never later.
  const nb::object remaining = called(PyObject_CallMethodNoArgs(context.ptr(), names().remaining));
  call->deadline = time_of(monotonic(arrived) + nb::cast<double>(remaining));
  call->request_id = facts->request_id.empty() ? random_id() : std::move(facts->request_id);
  call->lane_name = std::move(facts->lane_name);
  call->priority = facts->priority;
  call->message_bytes = std::min(facts->message_bytes.value_or(usual_bytes), most_bytes);
  if (!calls->admit(*call)) return nb::none();
  BoundShortCall* admitted = call.release();
  nb::object bound = nb::cast(admitted, nb::rv_policy::take_ownership);
  const nb::object end = called(PyObject_GetAttr(bound.ptr(), names().end));
  const nb::object is_added = called(PyObject_CallMethodOneArg(context.ptr(), names().add_callback, end.ptr()));
  if (is_added.ptr() != Py_True) admitted->end();
  return bound;
}

nb::list bound_of(const std::vector<ShortCall*>& calls) {
  nb::list found;
  for (ShortCall* call : calls) found.append(nb::find(*static_cast<BoundShortCall*>(call)));
  return found;
}

bool wait(bool (ShortCalls::*until)(Clock::duration), ShortCalls& calls, double seconds) {
  const auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  nb::gil_scoped_release unlocked;
  return (calls.*until)(limit);
}

void bind_drawing_parts(nb::module_& m) {
  nb::class_<ChangeCount>(m, "ChangeCount")
      .def(nb::init<>())
      .def("add", [](ChangeCount& changes) { ++changes.count; })
      .def_ro("count", &ChangeCount::count);
  nb::class_<DrawingParts>(m, "DrawingParts")
      .def(nb::init<nb::object, std::shared_ptr<Renderer>, std::shared_ptr<Account>, nb::object,
                    std::shared_ptr<ChangeCount>, double>(),
           "queue"_a, "renderer"_a, "payloads"_a, "staging"_a.none(), "changes"_a, "seconds"_a)
      .def(
          "keep",
          [](DrawingParts& parts, const BoundRequest& request, const nb::object& render, std::string engine,
             std::int64_t room_bytes, std::size_t message_bytes, std::uint64_t changes) {
            parts.keep(request.request, {nb::weakref(render), std::move(engine), room_bytes, message_bytes}, changes);
          },
          "request"_a, "render"_a, "engine"_a, "room_bytes"_a, "message_bytes"_a, "changes"_a,
          "Remember for a moment what draws Renders like this one, unless the scenes have changed since.");
}

void bind_short_call(nb::module_& m) {
  nb::class_<BoundShortCall>(m, "ShortCall")
      .def_ro("tenant", &BoundShortCall::tenant)
      .def_ro("request_id", &BoundShortCall::request_id)
      .def_ro("method", &BoundShortCall::method)
      .def_ro("priority", &BoundShortCall::priority)
      .def_ro("message_bytes", &BoundShortCall::message_bytes)
      .def_ro("context", &BoundShortCall::context)
      .def_ro("lane_name", &BoundShortCall::lane_name)
      .def_prop_ro("arrived", [](const BoundShortCall& call) { return monotonic(call.arrived); })
      .def_prop_ro("deadline", [](const BoundShortCall& call) { return monotonic(call.deadline); })
      .def_ro("outcome", &BoundShortCall::outcome)
      .def_ro("progress", &BoundShortCall::progress)
      .def_rw("request", &BoundShortCall::request)
      .def_ro("is_announced", &BoundShortCall::is_announced)
      .def_rw("why_cancelled", &BoundShortCall::why_cancelled)
      .def_prop_ro("has_started", &BoundShortCall::has_started)
      .def_ro("has_ended", &BoundShortCall::has_ended)
      .def_prop_ro("overdue_limit", &BoundShortCall::overdue_limit)
      .def("receive", &BoundShortCall::receive, "requests"_a,
           nb::sig("def receive(self, requests: object) -> bytes | None"))
      .def("draw_known", &BoundShortCall::draw_known, "parts"_a, "raw"_a,
           nb::sig("def draw_known(self, parts: DrawingParts, raw: bytes) -> bytes | None"))
      .def(
          "draw",
          [](BoundShortCall& self, const DrawingParts& parts, const nb::object& render, const BoundRequest& request,
             const nb::object& staging, std::int64_t room_bytes, const std::string& engine,
             const std::optional<HostBytes>& memory, const nb::bytes& head) {
            return self.draw(parts, render, request.request.poses, staging, room_bytes, engine, memory, head);
          },
          "parts"_a, "render"_a, "request"_a, "staging"_a.none(), "room_bytes"_a, "engine"_a, "memory"_a = nb::none(),
          "head"_a = nb::bytes(""),
          nb::sig("def draw(self, parts: DrawingParts, render: object, request: RenderRequest, staging: object, "
                  "room_bytes: int, engine: str, memory: object = None, head: bytes = b'') -> bytes | None"))
      .def("run", &BoundShortCall::run, "call"_a, nb::sig("def run(self, call: NativeCall) -> Outcome"))
      .def("answered", &BoundShortCall::answered, "engine"_a, "operation"_a, "received"_a, "sent"_a, "batch_views"_a)
      .def("begin_announcing", &BoundShortCall::begin_announcing)
      .def("announced", &BoundShortCall::announced)
      .def("begin_reply", &BoundShortCall::begin_reply)
      .def("hand_over", &BoundShortCall::hand_over)
      .def("release", &BoundShortCall::release)
      .def("end", &BoundShortCall::end);
}

}  // namespace

void bind_serving_calls(nb::module_& m) {
  bind_drawing_parts(m);
  bind_short_call(m);
  nb::class_<ShortCalls>(m, "ShortCalls")
      .def("__init__",
           [](ShortCalls* self, std::shared_ptr<Account> places, std::shared_ptr<Records> records) {
             new (self) ShortCalls(std::move(places), std::move(records));
           })
      .def("admit", &admit, "method"_a, "tenant"_a, "context"_a, "usual_bytes"_a, "most_bytes"_a, "takes_lanes"_a,
           nb::sig("def admit(self, method: str, tenant: str, context: object, usual_bytes: int, most_bytes: int, "
                   "takes_lanes: bool) -> ShortCall | None"))
      .def("close", &ShortCalls::close)
      .def("wait_idle", [](ShortCalls& calls, double seconds) { return wait(&ShortCalls::wait_idle, calls, seconds); })
      .def("wait_sent", [](ShortCalls& calls, double seconds) { return wait(&ShortCalls::wait_sent, calls, seconds); })
      .def(
          "open", [](const ShortCalls& calls) { return bound_of(calls.open()); },
          nb::sig("def open(self) -> list[ShortCall]"))
      .def(
          "unsent", [](const ShortCalls& calls, double before) { return bound_of(calls.unsent(time_of(before))); },
          "before"_a, nb::sig("def unsent(self, before: float) -> list[ShortCall]"))
      .def("__len__", &ShortCalls::count);
}

}  // namespace lumigrad
