// Jobs of prepared renders for Python, each with the bytes of its reply.
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

// The memory of a payload outside its reply, and the bytes of the reply before its timings.
struct Outside {
  HostBytes memory;
  std::string_view head;
};

// A render with the arrays that its pointers refer to, and the bytes of a reply around its payload.
struct BoundRender {
  std::shared_ptr<const Render> render;
  std::string head;
  nb::dict arrays;
  // The demand, without tenant, priority and deadline.
  Demand demand;
  // Bytes after the payload.
  std::size_t tail_bytes;

  // The bytes of a reply.
  std::size_t reply_bytes(const std::optional<Outside>& outside) const {
    return tail_bytes + (outside ? outside->head.size() : head.size() + render->payload_bytes);
  }
};

// A request, with the Python bytes that it refers to.
struct BoundRequest {
  nb::bytes raw;
  nb::str scene_id;
  RenderRequest request;
};

// Converts a time of Python's time.monotonic; a distant time counts as no deadline.
Clock::time_point time_of(double moment);

// A request in the queue, with its reply. One thread waits for it. Functions need the GIL unless stated otherwise.
class BoundJob {
 public:
  // `render` is a BoundRender; `prefix` precedes its reply. The device can write to the memory in `outside`, which the
  // job keeps alive.
  BoundJob(Queue& queue, const nb::object& render, std::vector<CameraPose> poses, const Renderer& renderer,
           const nb::object& staging, Demand demand, std::int64_t room_bytes, std::string_view prefix = {},
           const std::optional<Outside>& outside = {});

  // Submits and awaits the job without the GIL; a small job runs on this thread while the device is idle.
  void run(Clock::time_point arrived);
  // Adds the job to the queue, unless it is refused. With or without the GIL.
  void submit();
  // Waits for the submitted job without the GIL and completes the reply; `arrived` is when the request arrived.
  // `settle` must follow.
  void await(Clock::time_point arrived);
  Outcome settle();
  // Whether the job has succeeded; after `await`, with or without the GIL.
  bool is_done() const { return outcome_ == Outcome::kDone; }
  bool has_started() const { return queue_.has_started(*job_); }
  // Cancels the job, for which nobody waits any more.
  void cancel() { queue_.cancel(*job_); }

  nb::object reply() const { return is_done() ? nb::object(reply_) : nb::none(); }
  // Returns the reply, and frees everything that is not needed to report how the job went.
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
