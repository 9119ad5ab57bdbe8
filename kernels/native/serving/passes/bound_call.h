// A call that a native job answers: its reply, which the job fills, and the Python objects that both need.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/bound_job.h"
#include "serving/passes/payload_job.h"
#include "serving/queue/account.h"
#include "serving/queue/queue.h"

namespace lumigrad::serving {

// The demand of calls of one kind, without tenant, priority and deadline.
Demand demand_of(std::uint64_t kind, double views, std::size_t bytes);

inline std::string_view bytes_of(const nanobind::bytes& raw) { return {raw.c_str(), raw.size()}; }

// A request with the Python bytes that it refers to, and the scene or forward state that it names.
template <class Request>
struct Bound {
  nanobind::bytes raw;
  nanobind::str name;
  Request request;
};

// Returns None if the name is not valid UTF-8.
template <class Request>
nanobind::object bound(const nanobind::bytes& raw, std::string_view name, Request request) {
  PyObject* text = PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), nullptr);
  if (text == nullptr) {
    PyErr_Clear();
    return nanobind::none();
  }
  return nanobind::cast(Bound<Request>{raw, nanobind::steal<nanobind::str>(text), std::move(request)});
}

// Common part of the replies of one kind: the bytes before the payload, the size of the payload, its gaps, to which
// nothing is written, and the number of the field `timings`.
struct Envelope {
  std::string head;
  std::size_t payload_bytes;
  std::vector<std::pair<std::size_t, std::size_t>> gaps;
  unsigned timings;
};

// The gaps between parts of a payload. Parts and gaps are (offset, bytes); parts must be in order, without overlap, and
// the last must end with the payload, otherwise this throws.
std::vector<std::pair<std::size_t, std::size_t>> gaps_between(
    const std::vector<std::pair<std::size_t, std::size_t>>& parts, std::size_t payload_bytes);

// Arguments that each call provides.
struct CallContext {
  Queue& queue;
  nanobind::object staging;   // Memory besides the payload, or None.
  nanobind::object reserved;  // The payloads' reservation in an account.
  std::string tenant;
  int priority;
  double deadline;
  std::int64_t room_bytes;
  std::optional<Outside> outside;  // The place of the payload, if it is not in the reply.

  Demand complete(Demand demand) const;
};

// Owned by the call's thread.
class BoundCall {
 public:
  // `request` is the payload of the request, if it has one or tensors elsewhere; `kept` holds the objects that it and
  // the job's pointers refer to. The context has `staging_bytes` of staging memory, unless that is 0.
  BoundCall(const CallContext& context, const Envelope& envelope, std::shared_ptr<PayloadJob> job,
            std::optional<std::string_view> request, nanobind::object kept, std::size_t staging_bytes);

  // Waits for the job and completes the reply; `arrived` is when the call arrived. Also returns kFailed if the job does
  // not accept the request.
  Outcome run(double arrived);
  bool has_started() const { return queue_.has_started(*job_); }
  // Ends the call: nobody waits for the job any more, and the reply has been sent.
  void end();

  nanobind::object reply() const;
  std::vector<std::pair<std::string, double>> stage_times() const;  // Names with milliseconds.
  nanobind::dict stages() const;
  double total() const { return total_; }
  double overdue_limit() const { return job_->overdue_limit; }

 protected:
  // The bytes of the reply, which is not shared yet.
  char* written() const { return PyBytes_AS_STRING(reply_.ptr()); }

 private:
  void finish(double arrived);
  std::string tail() const;

  Queue& queue_;
  const Envelope& envelope_;
  const std::shared_ptr<PayloadJob> job_;
  const std::optional<std::string_view> request_;
  nanobind::object kept_, reserved_;
  HostBytes staging_, outside_;
  nanobind::bytes reply_;
  std::size_t tail_ = 0;
  Outcome outcome_ = Outcome::kPending;
  double decode_ = 0, queued_ = 0, total_ = 0;
};

}  // namespace lumigrad::serving
