// Python bindings of renders of stored scenes, whose requests differ only in their poses.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gaussians/bind_arrays.h"
#include "serving/bound_job.h"
#include "serving/queue/account.h"
#include "serving/queue/queue.h"
#include "serving/render.h"
#include "serving/reply.h"
#include "serving/request.h"
#include "spheres/bind_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

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

// Adds the outputs of a render.
std::shared_ptr<const Render> with_outputs(std::shared_ptr<Render> render, const std::vector<OutputTuple>& outputs,
                                           std::size_t payload_bytes) {
  std::size_t end = 0;
  for (const auto& [name, encoding, values, offset] : outputs) {
    render->outputs.push_back({name, encoding_named(encoding), values, offset});
    if (offset < end) throw nb::value_error("outputs: expected places one after the other");
    end = offset + render->outputs.back().bytes();
  }
  if (end != payload_bytes) throw nb::value_error("payload_bytes: expected the end of the last output");
  render->payload_bytes = payload_bytes;
  return render;
}

// Timings of a reply. Replies of one kind have the same names, and so timings of the same length.
std::string tail_of(const RenderStages& names, double decode, double queue, const RenderTimes& times, double total) {
  std::array<StageTime, kRenderStages + 3> stages{StageTime{"decode", decode}, StageTime{"queue", queue}};
  for (int i = 0; i < kRenderStages; ++i) stages[2 + i] = {names[i], times.stages[i]};
  stages.back() = {"download", times.download};
  return timings_field(stages, total);
}

BoundRender bound_render(std::shared_ptr<const Render> render, const nb::bytes& head, const nb::kwargs& arrays) {
  Demand demand;
  demand.views = static_cast<double>(render->views_count());
  demand.repeatable = true;
  const std::size_t tail_bytes = tail_of(render->stages(), 0, 0, {}, 0).size();
  return {std::move(render), {head.c_str(), head.size()}, nb::dict(arrays), std::move(demand), tail_bytes};
}

BoundRender gaussian_render(const gaussians::Views& views, const gaussians::Settings& settings,
                            const std::vector<OutputTuple>& outputs, std::size_t payload_bytes, const nb::bytes& head,
                            const nb::kwargs& arrays) {
  if (views.slice_poses.size() != 1 || !views.sensors.empty() || views.moving_slices != 0) {
    throw nb::value_error("views: expected one slice that does not move, and no sensors");
  }
  auto render = std::make_shared<GaussianRender>();
  render->views = views.views;
  render->settings = settings;
  render->scene = gaussians::make_scene(views, arrays);
  render->slice_begins = views.slice_begins;
  render->slice_pose = views.slice_poses[0];
  return bound_render(with_outputs(std::move(render), outputs, payload_bytes), head, arrays);
}

using LensTuple = std::tuple<double, double, double, double, int, int>;

BoundRender sphere_render(const std::vector<LensTuple>& lenses, double near, double far,
                          const spheres::Settings& settings, const std::vector<OutputTuple>& outputs,
                          std::size_t payload_bytes, const nb::bytes& head, const nb::kwargs& arrays) {
  auto render = std::make_shared<SphereRender>();
  for (const auto& [fx, fy, cx, cy, width, height] : lenses) render->lenses.push_back({fx, fy, cx, cy, width, height});
  render->range = {near, far};
  render->settings = settings;
  render->scene = spheres::make_scene(arrays);
  return bound_render(with_outputs(std::move(render), outputs, payload_bytes), head, arrays);
}

}  // namespace

namespace serving {
namespace {

double milliseconds_between(Clock::time_point begin, Clock::time_point end) { return seconds_of(end - begin) * 1e3; }

}  // namespace

Clock::time_point time_of(double moment) {
  constexpr double kMost = 1e9;
  if (!(moment < kMost)) return Clock::time_point::max();
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(moment)));
}

BoundJob::BoundJob(Queue& queue, const nb::object& render, std::vector<CameraPose> poses, const Renderer& renderer,
                   const nb::object& staging, Demand demand, std::int64_t room_bytes, std::string_view prefix,
                   const std::optional<Outside>& outside)
    : queue_(queue), render_(render), stages_(nb::cast<const BoundRender&>(render).render->stages()) {
  const auto& bound = nb::cast<const BoundRender&>(render);
  if (!bound.render->takes(poses)) throw nb::value_error("request: expected one of the render's key");
  const std::size_t payload_bytes = bound.render->payload_bytes;
  const std::string_view head = outside ? outside->head : bound.head;
  const std::size_t bytes = prefix.size() + bound.reply_bytes(outside);
  reply_ = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!reply_.is_valid()) throw nb::python_error();
  char* to = std::copy(prefix.begin(), prefix.end(), PyBytes_AS_STRING(reply_.ptr()));
  to = std::copy(head.begin(), head.end(), to);
  tail_ = bytes - bound.tail_bytes;
  if (outside) {
    outside_ = outside->memory;
    if (outside_.size() < payload_bytes) throw nb::value_error("memory: expected the payload's bytes");
    to = reinterpret_cast<char*>(outside_.data());
  }
  bound.render->clear_gaps(to);
  char* staged = nullptr;
  if (const std::size_t needed = renderer.staging_bytes(*bound.render, outside.has_value()); needed > 0) {
    staging_ = nb::cast<HostBytes>(staging);
    if (staging_.size() < needed) throw nb::value_error("staging: expected the renderer's staging_bytes");
    staged = reinterpret_cast<char*>(staging_.data());
  }
  job_ = renderer.job(std::move(demand), {bound.render, std::move(poses), to, staged, outside.has_value()});
  job_->room_bytes = room_bytes;
}

void BoundJob::run(Clock::time_point arrived) {
  outcome_ = queue_.run(job_);
  if (outcome_ == Outcome::kDone) finish(arrived);
}

void BoundJob::submit() {
  if (!queue_.submit(job_)) outcome_ = job_->outcome;
}

void BoundJob::await(Clock::time_point arrived) {
  if (outcome_ == Outcome::kPending) outcome_ = queue_.wait(*job_);
  if (outcome_ == Outcome::kDone) finish(arrived);
}

// The device's thread may still write to a lost job.
Outcome BoundJob::settle() {
  if (outcome_ == Outcome::kLost) {
    reply_.inc_ref();
    render_.inc_ref();
    nb::cast(staging_).release();
    nb::cast(outside_).release();
  }
  return outcome_;
}

nb::object BoundJob::take_reply() {
  if (outcome_ != Outcome::kDone) return nb::none();
  nb::object reply = std::move(reply_);
  render_.reset();
  staging_ = outside_ = {};
  return reply;
}

std::vector<std::pair<std::string, double>> BoundJob::stage_times() const {
  std::vector<std::pair<std::string, double>> stages{{"decode", decode_}, {"queue", queued()}};
  const RenderTimes& times = job_->times;
  for (int i = 0; i < kRenderStages; ++i) {
    if (times.stages[i] > 0.0) stages.emplace_back(stages_[i], times.stages[i]);
  }
  stages.emplace_back("download", times.download);
  return stages;
}

nb::dict BoundJob::stages() const {
  nb::dict result;
  for (const auto& [name, milliseconds] : stage_times()) result[name.c_str()] = milliseconds;
  return result;
}

double BoundJob::queued() const { return milliseconds_between(job_->queued, job_->started); }

void BoundJob::finish(Clock::time_point arrived) {
  job_->complete();
  decode_ = milliseconds_between(arrived, job_->queued);
  total_ = milliseconds_between(arrived, Clock::now());
  const std::string tail = tail_of(stages_, decode_, queued(), job_->times, total_);
  std::memcpy(PyBytes_AS_STRING(reply_.ptr()) + tail_, tail.data(), tail.size());
}

}  // namespace serving

namespace {

// The job of a call. It holds the account's bytes for the payload until the call ends.
class CallJob : public BoundJob {
 public:
  CallJob(Queue& queue, const nb::object& render, const BoundRequest& request, const Renderer& renderer,
          const nb::object& staging, const nb::object& payload, Demand demand, std::int64_t room_bytes,
          const std::optional<Outside>& outside)
      : BoundJob(queue, render, request.request.poses, renderer, staging, std::move(demand), room_bytes, {}, outside),
        payload_(payload) {}

  // Waits for the job and completes its reply; `arrived` is when the call arrived.
  Outcome run(double arrived) {
    {
      nb::gil_scoped_release unlocked;
      BoundJob::run(time_of(arrived));
    }
    return settle();
  }
  // Ends the call: nobody waits for the job any more, and the reply has been sent.
  void end() {
    cancel();
    nb::cast<Reservation&>(payload_).release();
  }

 private:
  nb::object payload_;
};

}  // namespace

void bind_serving_renders(nb::module_& m) {
  nb::class_<BoundRequest>(m, "RenderRequest")
      .def_ro("raw", &BoundRequest::raw)
      .def_prop_ro(
          "kind",
          [](const BoundRequest& b) {
            // Requests by name get a version that no scene has.
            const nb::int_ version = b.request.is_named ? nb::int_(-1) : nb::int_(b.request.version);
            return nb::make_tuple(b.scene_id, version, nb::bytes(b.request.key.data(), b.request.key.size()));
          },
          nb::sig("def kind(self, /) -> tuple[str, int, bytes]"), "Scene, version and key.")
      .def_prop_ro("key", [](const BoundRequest& b) { return nb::bytes(b.request.key.data(), b.request.key.size()); })
      .def("__len__", [](const BoundRequest& b) { return b.request.poses.size(); });
  m.def("read_render_request", &read_request, "raw"_a,
        nb::sig("def read_render_request(raw: bytes) -> RenderRequest | None"),
        "A request of a stored scene whose poses alone may differ from others of its key; None for all others.");
  m.def("gaussian_render", &gaussian_render, "views"_a, "settings"_a, "outputs"_a, "payload_bytes"_a, "head"_a,
        "arrays"_a);
  m.def("sphere_render", &sphere_render, "lenses"_a, "near"_a, "far"_a, "settings"_a, "outputs"_a, "payload_bytes"_a,
        "head"_a, "arrays"_a);
  nb::class_<BoundRender>(m, "NativeRender", nb::is_weak_referenceable())
      .def(
          "takes",
          [](const BoundRender& bound, const BoundRequest& request) {
            return bound.render->takes(request.request.poses);
          },
          "request"_a, "Whether it draws a request of its key from these poses.")
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
  nb::class_<Renderer>(m, "Renderer")
      .def(
          "staging_bytes",
          [](const Renderer& renderer, const BoundRender& bound, bool is_payload_pinned) {
            return renderer.staging_bytes(*bound.render, is_payload_pinned);
          },
          "render"_a, "is_payload_pinned"_a = false);
  m.def("cpu_renderer", &make_cpu_renderer);
  nb::class_<CallJob>(m, "RenderJob")
      .def(
          "__init__",
          [](CallJob* self, Queue& queue, const nb::object& render, const BoundRequest& request,
             const Renderer& renderer, const nb::object& staging, const nb::object& payload, std::string tenant,
             int priority, double deadline, std::int64_t room_bytes, const std::optional<HostBytes>& memory,
             const nb::bytes& head) {
            Demand demand = nb::cast<const BoundRender&>(render).demand;
            demand.tenant = std::move(tenant);
            demand.priority = priority;
            demand.deadline = time_of(deadline);
            std::optional<Outside> outside;
            if (memory) outside = Outside{*memory, {head.c_str(), head.size()}};
            new (self)
                CallJob(queue, render, request, renderer, staging, payload, std::move(demand), room_bytes, outside);
          },
          nb::keep_alive<1, 2>(), "queue"_a, "render"_a, "request"_a, "renderer"_a, "staging"_a.none(), "payload"_a,
          "tenant"_a, "priority"_a, "deadline"_a, "room_bytes"_a, "memory"_a = nb::none(), "head"_a = nb::bytes(""),
          "Draws to `memory`, if there is one, which any device can write to, and replies with `head` and timings.")
      .def("run", &CallJob::run, "arrived"_a)
      .def("end", &CallJob::end)
      .def_prop_ro("has_started", &CallJob::has_started)
      .def_prop_ro("reply", &CallJob::reply, nb::sig("def reply(self, /) -> bytes | None"))
      .def_prop_ro("stages", &CallJob::stages)
      .def_prop_ro("batch_views", &CallJob::batch_views)
      .def_prop_ro("overdue_limit", &CallJob::overdue_limit)
      .def_prop_ro("total_milliseconds", &CallJob::total);
}

}  // namespace lumigrad
