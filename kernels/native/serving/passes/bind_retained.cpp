// Python bindings of retained renders and their backward passes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "serving/bound_job.h"
#include "serving/passes/bound_call.h"
#include "serving/passes/bound_pass.h"
#include "serving/passes/camera_gradient.h"
#include "serving/passes/payload_request.h"
#include "serving/passes/retained.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

constexpr unsigned kRenderTimings = 6, kBackwardTimings = 4;  // Field numbers of `timings` in the replies.
constexpr std::size_t kNameLength = 32;

// The place of a state's name in the head of a reply, where it is all zeros.
std::size_t name_offset_in(std::string_view head) {
  const std::size_t found = head.find(std::string(kNameLength, '0'));
  if (found == std::string_view::npos || found < 2) throw nb::value_error("head: expected a place for a name");
  return found;
}

// Retained renders of one key, with the objects that their pointers refer to.
struct BoundRetained {
  std::shared_ptr<const RetainedRender> retained;
  std::shared_ptr<PassEngine> engine;
  nb::object render;
  Envelope envelope;
  std::size_t name_offset;  // Place of the state's name in a reply.
  Demand demand;
};

struct BoundBackward {
  std::shared_ptr<const BackwardKind> kind;
  std::shared_ptr<PassEngine> engine;
  Envelope envelope;
  Demand demand;
};

// The call of a retained render.
class RetainCall : public BoundCall {
 public:
  RetainCall(const CallContext& context, const BoundRetained& kind, BoundPass pass)
      : BoundCall(context, kind.envelope, kind.engine->render(context.complete(kind.demand), pass.pass), std::nullopt,
                  pass.kind, kind.engine->staging_bytes(*kind.retained)),
        name_offset_(context.outside ? name_offset_in(context.outside->head) : kind.name_offset),
        pass_(std::move(pass)) {}

  const BoundPass& pass() const { return pass_; }
  // The reply with the name of the state, or without a name if it is empty, because no state was kept.
  nb::bytes named(const std::string& name) const {
    char* at = written() + name_offset_;
    if (name.size() == kNameLength) {
      std::copy(name.begin(), name.end(), at);
      return nb::cast<nb::bytes>(reply());
    }
    // The name is preceded by a tag and a length.
    const std::string_view whole = bytes_of(nb::cast<nb::bytes>(reply()));
    std::string rest(whole.substr(0, name_offset_ - 2));
    rest += whole.substr(name_offset_ + kNameLength);
    return nb::bytes(rest.data(), rest.size());
  }

 private:
  const std::size_t name_offset_;
  const BoundPass pass_;
};

// The call of a backward pass.
class BackwardCall : public BoundCall {
 public:
  BackwardCall(const CallContext& context, const BoundBackward& kind, std::shared_ptr<BackwardJob> job,
               std::string_view request, nb::object kept)
      : BoundCall(context, kind.envelope, job, request, std::move(kept), kind.engine->staging_bytes(*kind.kind)),
        job_(std::move(job)) {}

  std::size_t nonfinite() const { return job_->nonfinite; }

 private:
  const std::shared_ptr<BackwardJob> job_;
};

std::optional<Outside> outside_of(const std::optional<HostBytes>& memory, const nb::bytes& head) {
  return memory ? std::optional(Outside{*memory, bytes_of(head)}) : std::nullopt;
}

// Addresses of the gradients of outputs outside the payload, by index; nullopt if one has another size.
std::optional<std::map<std::size_t, const char*>> placed(const nb::dict& uploads, const BackwardKind& kind) {
  std::map<std::size_t, const char*> places;
  for (const auto& [index, memory] : uploads) {
    const auto at = nb::cast<std::size_t>(index);
    const auto bytes = nb::cast<HostBytes>(memory);
    if (at >= kind.incoming.size() || bytes.size() != bytes_of(kind.incoming[at])) return std::nullopt;
    places[at] = reinterpret_cast<const char*>(bytes.data());
  }
  return places;
}

Encoding encoding_named(const std::string& name) {
  if (name == "plain") return Encoding::plain;
  if (name == "float16") return Encoding::float16;
  if (name == "bfloat16") return Encoding::bfloat16;
  throw std::invalid_argument("encoding '" + name + "' is none of plain, float16, bfloat16");
}

std::vector<std::pair<std::size_t, std::size_t>> parts_of(const std::vector<Output>& outputs) {
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  for (const Output& output : outputs) parts.emplace_back(output.offset, output.bytes());
  return parts;
}

void bind_passes(nb::module_& m) {
  nb::class_<PassEngine>(m, "PassEngine");
  m.def("cpu_passes", &make_cpu_passes);
  nb::class_<BoundRetained>(m, "RetainedRender")
      .def(
          "__init__",
          [](BoundRetained* self, const nb::object& render,
             const std::vector<std::pair<std::string, std::size_t>>& images, std::shared_ptr<PassEngine> engine,
             std::uint64_t kind, std::size_t bytes, const nb::object& backward) {
            const auto& bound = nb::cast<const BoundRender&>(render);
            const std::size_t name_offset = name_offset_in(bound.head);
            const Render& drawn = *bound.render;
            if ((dynamic_cast<const SphereRender*>(&drawn) != nullptr) == backward.is_none()) {
              throw nb::value_error("backward: expected settings for a render of spheres, and for no other");
            }
            auto retained = std::make_shared<RetainedRender>(bound.render, std::vector<KeptImage>());
            if (!backward.is_none()) retained->backward = nb::cast<spheres::Settings>(backward);
            for (const auto& [name, values] : images) retained->images.push_back({name, values});
            Envelope envelope{bound.head, drawn.payload_bytes,
                              gaps_between(parts_of(drawn.outputs), drawn.payload_bytes), kRenderTimings};
            Demand demand = demand_of(kind, static_cast<double>(drawn.views_count()), bytes);
            new (self) BoundRetained{std::move(retained), std::move(engine), render,
                                     std::move(envelope), name_offset,       std::move(demand)};
          },
          nb::kw_only(), "render"_a, "images"_a, "engine"_a, "kind"_a, "bytes"_a, "backward"_a = nb::none())
      .def_prop_ro("staging_bytes", [](const BoundRetained& b) { return b.engine->staging_bytes(*b.retained); });
  nb::class_<BoundPass>(m, "RetainedPass")
      .def_prop_ro(
          "bytes", [](const BoundPass& b) { return b.pass->bytes(); },
          "The memory that the kernels keep, without images.");
  m.def(
      "cpu_pass_parts",
      [](const BoundPass& bound) {
        auto pass = std::static_pointer_cast<CpuRetained>(bound.pass);
        nb::dict images;
        for (std::size_t i = 0; i < pass->images.size(); ++i) {
          const KeptImage& image = pass->kind->images[i];
          images[image.name.c_str()] =
              nb::ndarray<nb::pytorch, float, nb::ndim<1>>(pass->image(i), {image.values}, owner_of(bound));
        }
        return nb::make_tuple(std::shared_ptr<gaussians::Pass>(pass, &pass->pass), images);
      },
      "state"_a, "What `State` has of a state on the CPU: the kernels' part, and the images by name.");
}

void bind_backwards(nb::module_& m) {
  nb::class_<Bound<BackwardRequest>>(m, "BackwardRequest")
      .def_ro("context_id", &Bound<BackwardRequest>::name)
      .def_prop_ro(
          "key", [](const Bound<BackwardRequest>& b) { return nb::bytes(b.request.key.data(), b.request.key.size()); })
      .def_prop_ro("payload_bytes", [](const Bound<BackwardRequest>& b) { return b.request.payload.size(); })
      .def_prop_ro(
          "spans",
          [](const Bound<BackwardRequest>& b) {
            nb::list spans;
            for (const RegionSpan& span : b.request.spans) {
              spans.append(nb::make_tuple(span.region, span.offset, span.length));
            }
            return spans;
          },
          nb::sig("def spans(self, /) -> list[tuple[int, int, int]]"),
          "Region, offset and length of each tensor in shared memory.");
  m.def(
      "read_backward_request",
      [](const nb::bytes& raw) {
        std::optional<BackwardRequest> request = read_backward_request(bytes_of(raw));
        if (!request) return nb::object(nb::none());
        const std::string_view name = request->context_id;
        return bound(raw, name, std::move(*request));
      },
      "raw"_a, nb::sig("def read_backward_request(raw: bytes) -> BackwardRequest | None"),
      "A Backward of a retained state that may differ from others of its key in state and payload only; or None.");
  using Part = std::tuple<std::string, std::string, std::size_t, std::size_t>;
  nb::class_<BoundBackward>(m, "BackwardKind")
      .def(
          "__init__",
          [](BoundBackward* self, const std::vector<Part>& incoming, const std::vector<Part>& gradients,
             std::size_t payload_bytes, const nb::bytes& head, std::shared_ptr<PassEngine> engine, std::uint64_t kind,
             std::size_t views, std::size_t bytes, bool has_spheres) {
            auto made = std::make_shared<BackwardKind>();
            made->has_spheres = has_spheres;
            gaussians::Upstream upstream{};
            spheres::Upstream of_spheres{};
            for (const auto& [name, encoding, values, offset] : incoming) {
              has_spheres ? point_incoming(of_spheres, name, nullptr) : point_incoming(upstream, name, nullptr);
              made->incoming.push_back({name, encoding_named(encoding), values, offset});
            }
            made->views = views;
            for (const auto& [name, encoding, values, offset] : gradients) {
              if (const std::size_t each = camera_values(name); each > 0 && values != views * each) {
                throw nb::value_error("gradients: expected as many values of cameras as there are views");
              }
              made->gradients.push_back({name, encoding_named(encoding), values, offset});
            }
            gaussians::Gradients all{};
            spheres::Gradients all_of_spheres{};
            for (const auto& [name, size] : made->results()) {
              has_spheres ? point_gradient(all_of_spheres, name, nullptr) : point_gradient(all, name, nullptr);
            }
            Envelope envelope{std::string(bytes_of(head)), payload_bytes,
                              gaps_between(parts_of(made->gradients), payload_bytes), kBackwardTimings};
            Demand demand = demand_of(kind, static_cast<double>(views), bytes);
            new (self) BoundBackward{std::move(made), std::move(engine), std::move(envelope), std::move(demand)};
          },
          nb::kw_only(), "incoming"_a, "gradients"_a, "payload_bytes"_a, "head"_a, "engine"_a, "kind"_a, "views"_a,
          "bytes"_a, "has_spheres"_a = false)
      .def(
          "takes", [](const BoundBackward& b, const nb::dict& uploads) { return placed(uploads, *b.kind).has_value(); },
          "uploads"_a, "Whether these have the bytes of the gradients of outputs, by their index.")
      .def_prop_ro("staging_bytes", [](const BoundBackward& b) { return b.engine->staging_bytes(*b.kind); });
}

void bind_calls(nb::module_& m) {
  nb::class_<RetainCall, BoundCall>(m, "RetainCall")
      .def(
          "__init__",
          [](RetainCall* self, Queue& queue, const nb::object& kind, const nb::object& request,
             const nb::object& staging, const nb::object& reserved, std::string tenant, int priority, double deadline,
             std::int64_t room_bytes, const std::optional<HostBytes>& memory, const nb::bytes& head) {
            const auto& bound = nb::cast<const BoundRetained&>(kind);
            const auto& cameras = nb::cast<const BoundRequest&>(request).request.poses;
            if (cameras.size() != bound.retained->render->views_count()) {
              throw nb::value_error("request: expected one of the render's key");
            }
            const CallContext context{queue,    staging,  reserved,   std::move(tenant),
                                      priority, deadline, room_bytes, outside_of(memory, head)};
            new (self) RetainCall(context, bound, {bound.engine->pass(bound.retained, cameras), kind});
          },
          nb::keep_alive<1, 2>(), "queue"_a, "kind"_a, "request"_a, "staging"_a.none(), "reserved"_a, "tenant"_a,
          "priority"_a, "deadline"_a, "room_bytes"_a, "memory"_a = nb::none(), "head"_a = nb::bytes(""),
          "Writes the payload to `memory`, if there is one, and replies with `head` and timings.")
      .def_prop_ro("state", &RetainCall::pass)
      .def("named", &RetainCall::named, "name"_a);
  nb::class_<BackwardCall, BoundCall>(m, "BackwardCall")
      .def(
          "__init__",
          [](BackwardCall* self, Queue& queue, const nb::object& kind,
             const std::pair<nb::object, nb::object>& request_and_state, const nb::object& staging,
             const nb::object& reserved, std::string tenant, int priority, double deadline, std::int64_t room_bytes,
             const nb::dict& uploads, const std::optional<HostBytes>& memory, const nb::bytes& head) {
            const auto& [request, state] = request_and_state;
            const auto& bound = nb::cast<const BoundBackward&>(kind);
            const CallContext context{queue,    staging,  reserved,   std::move(tenant),
                                      priority, deadline, room_bytes, outside_of(memory, head)};
            const BoundPass& pass = nb::cast<const BoundPass&>(state);
            if (bound.kind->has_spheres ==
                (dynamic_cast<const GaussianRender*>(pass.pass->kind->render.get()) != nullptr)) {
              throw nb::value_error("state: expected one of the kind of scene that is differentiated");
            }
            auto job = bound.engine->backward(context.complete(bound.demand), bound.kind, pass.pass);
            std::optional<std::map<std::size_t, const char*>> places = placed(uploads, *bound.kind);
            if (!places) throw nb::value_error("uploads: expected the bytes of gradients by their index");
            job->outside = std::move(*places);
            new (self) BackwardCall(context, bound, std::move(job),
                                    nb::cast<const Bound<BackwardRequest>&>(request).request.payload,
                                    nb::make_tuple(kind, state, request, uploads));
          },
          nb::keep_alive<1, 2>(), "queue"_a, "kind"_a, "request_and_state"_a, "staging"_a.none(), "reserved"_a,
          "tenant"_a, "priority"_a, "deadline"_a, "room_bytes"_a, "uploads"_a = nb::dict(), "memory"_a = nb::none(),
          "head"_a = nb::bytes(""),
          "Reads the gradients in `uploads`, by their index, from there; `memory` and `head` as those of RetainCall.")
      .def_prop_ro("nonfinite", &BackwardCall::nonfinite);
}

}  // namespace

void bind_retained(nb::module_& m) {
  bind_passes(m);
  bind_backwards(m);
  bind_calls(m);
}

}  // namespace lumigrad
