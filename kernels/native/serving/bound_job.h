// Jobs of prepared renders as Python holds them, each with the bytes of its reply.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/queue/queue.h"
#include "serving/render.h"
#include "serving/request.h"

namespace lumigrad::serving {

namespace nb = nanobind;

using HostBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The memory of a payload that lies outside of its reply, and the bytes of the reply before its timings.
struct Outside {
  HostBytes memory;
  std::string_view head;
};

// A render with the arrays that its pointers refer to, and the bytes of a reply around its payload.
struct BoundRender {
  std::shared_ptr<const Render> render;
  std::string head;
  nb::dict arrays;
  // Demand without tenant, priority and deadline.
  Demand demand;
  // Bytes after the payload.
  std::size_t tail_bytes;

  // The bytes of a reply.
  std::size_t reply_bytes(const std::optional<Outside>& outside) const {
    return tail_bytes + (outside ? outside->head.size() : head.size() + render->payload_bytes);
  }
};

// A request of bytes that Python holds as long as this.
struct BoundRequest {
  nb::bytes raw;
  nb::str scene_id;
  RenderRequest request;
};

// Moment by Python's time.monotonic; far ones are none.
Clock::time_point time_of(double moment);

// A request in the queue, with its reply. One thread waits for it. Functions need the interpreter's lock, unless they
// say otherwise.
class BoundJob {
 public:
  // `render` is a BoundRender; `prefix` comes before its reply. Devices can write to the memory `outside`, which the
  // job keeps.
  BoundJob(Queue& queue, const nb::object& render, std::vector<CameraPose> poses, const Renderer& renderer,
           const nb::object& staging, Demand demand, std::int64_t room_bytes, std::string_view prefix = {},
           const std::optional<Outside>& outside = {});

  // Submits and awaits, without the interpreter's lock; a small job runs on this thread while the device is
  // idle.
  void run(Clock::time_point arrived);
  // Adds it to the queue, unless it is refused. With or without the interpreter's lock.
  void submit();
  // Waits, without the interpreter's lock, for a job that was submitted, and completes the reply to a request that has
  // arrived at `arrived`. `settle` must follow.
  void await(Clock::time_point arrived);
  Outcome settle();
  // Whether it has succeeded; with or without the interpreter's lock, after `await`.
  bool is_done() const { return outcome_ == Outcome::kDone; }
  bool has_started() const { return queue_.has_started(*job_); }
  // Nobody waits for it any more.
  void cancel() { queue_.cancel(*job_); }

  nb::object reply() const { return is_done() ? nb::object(reply_) : nb::none(); }
  // Gives the reply away, and with it all that is not needed to tell how the job went.
  nb::object take_reply();
  // Milliseconds by stage.
  std::vector<std::pair<std::string, double>> stage_times() const;
  nb::dict stages() const;
  double total() const { return total_; }
  int batch_views() const { return job_->batch_views; }
  double overdue_limit() const { return job_->overdue_limit; }

 private:
  double queued() const;
  void finish(Clock::time_point arrived);

  Queue& queue_;
  nb::object render_;
  const RenderStages& stages_;
  nb::bytes reply_;
  HostBytes staging_, outside_;
  std::shared_ptr<RenderJob> job_;
  std::size_t tail_ = 0;
  Outcome outcome_ = Outcome::kPending;
  double decode_ = 0, total_ = 0;
};

}  // namespace lumigrad::serving
