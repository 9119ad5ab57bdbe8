// Python bindings of the renders of stored scenes: of requests that differ in their poses only.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gaussians/bind_arrays.h"
#include "serving/account.h"
#include "serving/queue.h"
#include "serving/render.h"
#include "serving/reply.h"
#include "serving/request.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

// A request of bytes that Python holds as long as this.
struct BoundRequest {
  nb::bytes raw;
  nb::str scene_id;
  RenderRequest request;
};

nb::object read_request(const nb::bytes& raw) {
  std::optional<RenderRequest> request = read_render_request({raw.c_str(), raw.size()});
  if (!request) return nb::none();
  const std::string_view id = request->scene_id;
  PyObject* text = PyUnicode_DecodeUTF8(id.data(), static_cast<Py_ssize_t>(id.size()), nullptr);
  if (text == nullptr) {
    PyErr_Clear();
    return nb::none();
  }
  return nb::cast(BoundRequest{raw, nb::steal<nb::str>(text), std::move(*request)});
}

using OutputTuple = std::tuple<std::string, std::string, std::size_t, std::size_t>;

Encoding encoding_named(const std::string& name) {
  if (name == "plain") return Encoding::plain;
  if (name == "levels") return Encoding::levels;
  if (name == "float16") return Encoding::float16;
  if (name == "bfloat16") return Encoding::bfloat16;
  throw std::invalid_argument("encoding '" + name + "' is none of plain, levels, float16, bfloat16");
}

// A render with the arrays that its pointers refer to, and the bytes of a reply around its payload.
struct BoundRender {
  std::shared_ptr<const GaussianRender> render;
  std::string head;
  nb::dict arrays;
  // But for tenant, priority and deadline.
  Demand demand;
};

GaussianRender render_of(const gaussians::Views& views, const gaussians::Settings& settings,
                         const std::vector<OutputTuple>& outputs, std::size_t payload_bytes, bool half_precision,
                         const nb::kwargs& arrays) {
  if (views.slice_poses.size() != 1 || !views.sensors.empty() || views.moving_slices != 0) {
    throw nb::value_error("views: expected one slice that does not move, and no sensors");
  }
  GaussianRender render{.views = views.views,
                        .settings = settings,
                        .scene = gaussians::make_scene(views, arrays),
                        .slice_begins = views.slice_begins,
                        .slice_pose = views.slice_poses[0],
                        .half_precision = half_precision,
                        .outputs = {},
                        .payload_bytes = payload_bytes};
  std::size_t end = 0;
  for (const auto& [name, encoding, values, offset] : outputs) {
    render.outputs.push_back({name, encoding_named(encoding), values, offset});
    if (offset < end) throw nb::value_error("outputs: expected places one after the other");
    end = offset + render.outputs.back().bytes();
  }
  if (end != payload_bytes) throw nb::value_error("payload_bytes: expected the end of the last output");
  return render;
}

// In the order of gaussians::kStageNames.
constexpr const char* kKernelNames[] = {"kernel.project", "kernel.sort", "kernel.bin", "kernel.blend"};

// Timings of a reply. All have the same names, so that all are of one length.
std::string tail_of(double decode, double queue, const RenderTimes& times, double total) {
  std::array<StageTime, 7> stages{StageTime{"decode", decode}, StageTime{"queue", queue}};
  for (int i = 0; i < 4; ++i) stages[2 + i] = {kKernelNames[i], times.stages[i]};
  stages[6] = {"download", times.download};
  return timings_field(stages, total);
}

// By Python's time.monotonic; far ones are none.
Clock::time_point time_of(double moment) {
  constexpr double kMost = 1e9;
  if (!(moment < kMost)) return Clock::time_point::max();
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(moment)));
}

double milliseconds_between(Clock::time_point begin, Clock::time_point end) { return seconds_of(end - begin) * 1e3; }

// A request in the queue, with its reply. Its call's thread owns it.
class BoundJob {
 public:
  BoundJob(Queue& queue, const nb::object& render, const BoundRequest& request, const Renderer& renderer,
           const nb::object& staging, const nb::object& payload, Demand demand, std::int64_t room_bytes)
      : queue_(queue), render_(render), payload_(payload) {
    const auto& bound = nb::cast<const BoundRender&>(render);
    if (request.request.poses.size() != bound.render->views.size()) {
      throw nb::value_error("request: expected one of the render's key");
    }
    const std::size_t head = bound.head.size();
    tail_ = head + bound.render->payload_bytes;
    const std::size_t bytes = tail_ + tail_of(0, 0, {}, 0).size();
    reply_ = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!reply_.is_valid()) throw nb::python_error();
    char* to = PyBytes_AS_STRING(reply_.ptr());
    std::memcpy(to, bound.head.data(), head);
    bound.render->clear_gaps(to + head);
    char* staged = nullptr;
    if (const std::size_t needed = renderer.staging_bytes(*bound.render); needed > 0) {
      staging_ = nb::cast<nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(staging);
      if (staging_.size() < needed) throw nb::value_error("staging: expected the renderer's staging_bytes");
      staged = reinterpret_cast<char*>(staging_.data());
    }
    job_ = renderer.job(std::move(demand), {bound.render, request.request.poses, to + head, staged});
    job_->room_bytes = room_bytes;
  }

  // Waits for the job, whose call has arrived at `arrived`, and completes its reply.
  Outcome run(double arrived) {
    {
      nb::gil_scoped_release unlocked;
      outcome_ = queue_.run(job_);
      if (outcome_ == Outcome::kDone) finish(arrived);
    }
    // The device's thread may still write to it.
    if (outcome_ == Outcome::kLost) {
      reply_.inc_ref();
      render_.inc_ref();
      nb::cast(staging_).release();
    }
    return outcome_;
  }
  bool has_started() const { return queue_.has_started(*job_); }
  // The call has ended: nobody waits for the job, and the reply has left.
  void end() {
    queue_.cancel(*job_);
    nb::cast<Reservation&>(payload_).release();
  }

  nb::object reply() const { return outcome_ == Outcome::kDone ? nb::object(reply_) : nb::none(); }
  // Milliseconds by stage.
  nb::dict stages() const {
    nb::dict result;
    result["decode"] = decode_;
    result["queue"] = queued();
    const RenderTimes& times = job_->times;
    for (int i = 0; i < 4; ++i) {
      if (times.stages[i] > 0.0) result[kKernelNames[i]] = times.stages[i];
    }
    result["download"] = times.download;
    return result;
  }
  double total() const { return total_; }
  int batch_views() const { return job_->batch_views; }
  double overdue_limit() const { return job_->overdue_limit; }

 private:
  double queued() const { return milliseconds_between(job_->queued, job_->started); }
  void finish(double arrived) {
    job_->complete();
    const Clock::time_point begin = time_of(arrived);
    decode_ = milliseconds_between(begin, job_->queued);
    total_ = milliseconds_between(begin, Clock::now());
    const std::string tail = tail_of(decode_, queued(), job_->times, total_);
    std::memcpy(PyBytes_AS_STRING(reply_.ptr()) + tail_, tail.data(), tail.size());
  }

  Queue& queue_;
  nb::object render_;
  nb::object payload_;
  nb::bytes reply_;
  nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> staging_;
  std::shared_ptr<RenderJob> job_;
  std::size_t tail_ = 0;
  Outcome outcome_ = Outcome::kPending;
  double decode_ = 0, total_ = 0;
};

}  // namespace

void bind_serving_renders(nb::module_& m) {
  nb::class_<BoundRequest>(m, "RenderRequest")
      .def_ro("scene_id", &BoundRequest::scene_id)
      .def_prop_ro("version", [](const BoundRequest& b) { return b.request.version; })
      .def_prop_ro("key", [](const BoundRequest& b) { return nb::bytes(b.request.key.data(), b.request.key.size()); })
      .def("__len__", [](const BoundRequest& b) { return b.request.poses.size(); });
  m.def("read_render_request", &read_request, "raw"_a,
        nb::sig("def read_render_request(raw: bytes) -> RenderRequest | None"),
        "A request of a stored scene whose poses alone may differ from others of its key; None for all others.");
  nb::class_<BoundRender>(m, "GaussianRender")
      .def(
          "__init__",
          [](BoundRender* self, const gaussians::Views& views, const gaussians::Settings& settings,
             const std::vector<OutputTuple>& outputs, std::size_t payload_bytes, const nb::bytes& head,
             bool half_precision, const nb::kwargs& arrays) {
            Demand demand;
            demand.views = static_cast<double>(views.count());
            demand.repeatable = true;
            new (self) BoundRender{std::make_shared<GaussianRender>(
                                       render_of(views, settings, outputs, payload_bytes, half_precision, arrays)),
                                   {head.c_str(), head.size()},
                                   nb::dict(arrays),
                                   std::move(demand)};
          },
          "views"_a, "settings"_a, "outputs"_a, "payload_bytes"_a, "head"_a, "half_precision"_a, "arrays"_a)
      .def(
          "demand",
          [](BoundRender& bound, std::uint64_t kind, std::uint64_t batch, double fill, std::size_t bytes) {
            bound.demand.kind = kind;
            bound.demand.batch = batch;
            bound.demand.fill = fill;
            bound.demand.bytes = bytes;
          },
          nb::kw_only(), "kind"_a, "batch"_a, "fill"_a, "bytes"_a,
          "What the queue has to know of each; before the first job.");
  nb::class_<Renderer>(m, "Renderer").def("staging_bytes", [](const Renderer& renderer, const BoundRender& bound) {
    return renderer.staging_bytes(*bound.render);
  });
  m.def("cpu_renderer", &make_cpu_renderer);
  nb::class_<BoundJob>(m, "RenderJob")
      .def(
          "__init__",
          [](BoundJob* self, Queue& queue, const nb::object& render, const BoundRequest& request,
             const Renderer& renderer, const nb::object& staging, const nb::object& payload, std::string tenant,
             int priority, double deadline, std::int64_t room_bytes) {
            Demand demand = nb::cast<const BoundRender&>(render).demand;
            demand.tenant = std::move(tenant);
            demand.priority = priority;
            demand.deadline = time_of(deadline);
            new (self) BoundJob(queue, render, request, renderer, staging, payload, std::move(demand), room_bytes);
          },
          nb::keep_alive<1, 2>(), "queue"_a, "render"_a, "request"_a, "renderer"_a, "staging"_a.none(), "payload"_a,
          "tenant"_a, "priority"_a, "deadline"_a, "room_bytes"_a)
      .def("run", &BoundJob::run, "arrived"_a)
      .def("end", &BoundJob::end)
      .def_prop_ro("has_started", &BoundJob::has_started)
      .def_prop_ro("reply", &BoundJob::reply, nb::sig("def reply(self, /) -> bytes | None"))
      .def_prop_ro("stages", &BoundJob::stages)
      .def_prop_ro("batch_views", &BoundJob::batch_views)
      .def_prop_ro("overdue_limit", &BoundJob::overdue_limit)
      .def_prop_ro("total_milliseconds", &BoundJob::total);
}

}  // namespace lumigrad
