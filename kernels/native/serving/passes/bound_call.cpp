#include "serving/passes/bound_call.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "serving/reply.h"

namespace nb = nanobind;

namespace lumigrad::serving {
namespace {

double milliseconds_between(Clock::time_point begin, Clock::time_point end) { return seconds_of(end - begin) * 1e3; }

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> gaps_between(
    const std::vector<std::pair<std::size_t, std::size_t>>& parts, std::size_t payload_bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> gaps;
  std::size_t end = 0;
  for (const auto& [offset, bytes] : parts) {
    if (offset < end) throw std::invalid_argument("outputs: expected places one after the other");
    if (offset > end) gaps.emplace_back(end, offset - end);
    end = offset + bytes;
  }
  if (end != payload_bytes) throw std::invalid_argument("payload_bytes: expected the end of the last output");
  return gaps;
}

Demand demand_of(std::uint64_t kind, double views, std::size_t bytes) {
  Demand demand;
  demand.kind = kind;
  demand.views = views;
  demand.bytes = bytes;
  demand.repeatable = true;
  return demand;
}

Demand CallContext::complete(Demand demand) const {
  demand.tenant = tenant;
  demand.priority = priority;
  demand.deadline = time_of(deadline);
  return demand;
}

BoundCall::BoundCall(const CallContext& context, const Envelope& envelope, std::shared_ptr<PayloadJob> job,
                     std::optional<std::string_view> request, nb::object kept, std::size_t staging_bytes)
    : queue_(context.queue),
      envelope_(envelope),
      job_(std::move(job)),
      request_(request),
      kept_(std::move(kept)),
      reserved_(context.reserved) {
  job_->room_bytes = context.room_bytes;
  if (staging_bytes > 0) {
    staging_ = nb::cast<HostBytes>(context.staging);
    if (staging_.size() < staging_bytes) throw nb::value_error("staging: expected the kind's staging_bytes");
    job_->staging = reinterpret_cast<char*>(staging_.data());
  }
  const std::string_view head = context.outside ? context.outside->head : envelope.head;
  tail_ = head.size() + (context.outside ? 0 : envelope.payload_bytes);
  // The tail's length does not depend on the times.
  const std::size_t bytes = tail_ + tail().size();
  reply_ = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!reply_.is_valid()) throw nb::python_error();
  char* to = std::copy(head.begin(), head.end(), written());
  if (context.outside) {
    outside_ = context.outside->memory;
    if (outside_.size() < envelope.payload_bytes) throw nb::value_error("memory: expected the payload's bytes");
    to = reinterpret_cast<char*>(outside_.data());
  }
  job_->payload = to;
  for (const auto& [offset, length] : envelope.gaps) std::memset(job_->payload + offset, 0, length);
}

Outcome BoundCall::run(double arrived) {
  {
    nb::gil_scoped_release unlocked;
    outcome_ = job_->accept(request_.value_or("")) ? queue_.run(job_) : Outcome::kFailed;
    if (outcome_ == Outcome::kDone) finish(arrived);
  }
  // The device's thread may still write to the reply.
  if (outcome_ == Outcome::kLost) {
    reply_.inc_ref();
    kept_.inc_ref();
    nb::cast(staging_).release();
    nb::cast(outside_).release();
  }
  return outcome_;
}

void BoundCall::end() {
  queue_.cancel(*job_);
  nb::cast<Reservation&>(reserved_).release();
}

nb::object BoundCall::reply() const { return outcome_ == Outcome::kDone ? nb::object(reply_) : nb::none(); }

std::vector<std::pair<std::string, double>> BoundCall::stage_times() const {
  std::vector<std::pair<std::string, double>> stages{{"decode", decode_}, {"queue", queued_}};
  if (request_) stages.emplace_back("upload", job_->upload);
  const std::span<const char* const> names = job_->stages();
  for (std::size_t i = 0; i < names.size(); ++i) stages.emplace_back(names[i], job_->times[i]);
  stages.emplace_back("download", job_->download);
  return stages;
}

nb::dict BoundCall::stages() const {
  nb::dict result;
  for (const auto& [name, milliseconds] : stage_times()) result[name.c_str()] = milliseconds;
  return result;
}

void BoundCall::finish(double arrived) {
  job_->complete();
  const Clock::time_point begin = time_of(arrived);
  decode_ = milliseconds_between(begin, job_->queued);
  queued_ = milliseconds_between(job_->queued, job_->started);
  total_ = milliseconds_between(begin, Clock::now());
  const std::string written = tail();
  std::memcpy(PyBytes_AS_STRING(reply_.ptr()) + tail_, written.data(), written.size());
}

std::string BoundCall::tail() const {
  const std::vector<std::pair<std::string, double>> times = stage_times();
  std::vector<StageTime> stages;
  for (const auto& [name, milliseconds] : times) stages.push_back({name, milliseconds});
  return timings_field(stages, total_, envelope_.timings);
}

}  // namespace lumigrad::serving
