// Python bindings of calls that native jobs answer, whose requests differ in their payload only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshes/bind_arrays.h"
#include "serving/bound_job.h"
#include "serving/passes/bound_call.h"
#include "serving/passes/distance.h"
#include "serving/passes/payload_request.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

std::string_view bytes_of(const nb::bytes& raw) { return {raw.c_str(), raw.size()}; }

// A request of bytes that Python holds as long as this, and what it names: a scene or a forward state.
template <class Request>
struct Bound {
  nb::bytes raw;
  nb::str name;
  Request request;
};

template <class Request>
nb::object bound(const nb::bytes& raw, std::string_view name, Request request) {
  PyObject* text = PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), nullptr);
  if (text == nullptr) {
    PyErr_Clear();
    return nb::none();
  }
  return nb::cast(Bound<Request>{raw, nb::steal<nb::str>(text), std::move(request)});
}

template <class Request>
nb::class_<Bound<Request>> bind_request(nb::module_& m, const char* python_name) {
  nb::class_<Bound<Request>> made(m, python_name);
  made.def_prop_ro("key", [](const Bound<Request>& b) { return nb::bytes(b.request.key.data(), b.request.key.size()); })
      .def_prop_ro("payload_bytes", [](const Bound<Request>& b) { return b.request.payload.size(); });
  return made;
}

void bind_requests(nb::module_& m) {
  bind_request<QueryRequest>(m, "QueryRequest")
      .def_ro("scene_id", &Bound<QueryRequest>::name)
      .def_prop_ro("version", [](const Bound<QueryRequest>& b) { return b.request.scene.version; });
  m.def(
      "read_query_request",
      [](const nb::bytes& raw) {
        std::optional<QueryRequest> request = read_query_request(bytes_of(raw));
        if (!request) return nb::object(nb::none());
        const std::string_view name = request->scene.scene_id;
        return bound(raw, name, std::move(*request));
      },
      "raw"_a, nb::sig("def read_query_request(raw: bytes) -> QueryRequest | None"),
      "A query of a stored scene whose payload alone may differ from others of its key; None for all others.");
}

// What the queue has to know of each call of a kind.
Demand demand_of(std::uint64_t kind, double views, std::size_t bytes) {
  Demand demand;
  demand.kind = kind;
  demand.views = views;
  demand.bytes = bytes;
  demand.repeatable = true;
  return demand;
}

Demand demand_of(Demand demand, std::string tenant, int priority, double deadline) {
  demand.tenant = std::move(tenant);
  demand.priority = priority;
  demand.deadline = time_of(deadline);
  return demand;
}

// A query with what its pointers refer to.
struct BoundQuery {
  std::shared_ptr<const DistanceQuery> query;
  std::shared_ptr<DistanceEngine> engine;
  nb::object world;
  Envelope envelope;
  Demand demand;
};

using Place = std::pair<std::string, std::size_t>;

void make_query(BoundQuery* self, const nb::object& world, const meshes::Settings& settings, float weight,
                const std::array<std::int32_t, 3>& rows, std::size_t spheres, std::optional<std::size_t> environments,
                float most_coordinate, const std::vector<Place>& outputs, std::size_t payload_bytes,
                const nb::bytes& head, std::shared_ptr<DistanceEngine> engine, std::uint64_t kind, std::size_t bytes) {
  auto query = std::make_shared<DistanceQuery>();
  query->world = nb::cast<const meshes::PlacedWorld&>(world).world();
  query->settings = settings;
  query->weight = weight;
  query->batches = rows[0];
  query->horizon = rows[1];
  query->count = rows[2];
  query->spheres_offset = spheres;
  query->environments_offset = environments;
  query->most_coordinate = most_coordinate;
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  for (const auto& [name, offset] : outputs) {
    query->outputs.push_back({name, offset});
    parts.emplace_back(offset, query->bytes(query->outputs.back()));
  }
  Envelope envelope{std::string(bytes_of(head)), payload_bytes, gaps_between(parts, payload_bytes), 6};
  new (self) BoundQuery{std::move(query), std::move(engine), world, std::move(envelope), demand_of(kind, 1, bytes)};
}

void bind_queries(nb::module_& m) {
  nb::class_<DistanceEngine>(m, "DistanceEngine");
  m.def("cpu_distances", &make_cpu_distances);
  nb::class_<BoundQuery>(m, "DistanceQuery")
      .def("__init__", &make_query, nb::kw_only(), "world"_a, "settings"_a, "weight"_a, "rows"_a, "spheres"_a,
           "environments"_a.none(), "most_coordinate"_a, "outputs"_a, "payload_bytes"_a, "head"_a, "engine"_a, "kind"_a,
           "bytes"_a);
}

void bind_calls(nb::module_& m) {
  nb::class_<BoundCall>(m, "NativeCall")
      .def(
          "__init__",
          [](BoundCall* self, Queue& queue, const nb::object& query, const nb::object& request,
             const nb::object& reserved, std::string tenant, int priority, double deadline, std::int64_t room_bytes) {
            const auto& [raw, name, read] = nb::cast<const Bound<QueryRequest>&>(request);
            const auto& kind = nb::cast<const BoundQuery&>(query);
            auto job = kind.engine->job(demand_of(kind.demand, std::move(tenant), priority, deadline), kind.query);
            job->room_bytes = room_bytes;
            new (self)
                BoundCall(queue, kind.envelope, std::move(job), read.payload, nb::make_tuple(query, request), reserved);
          },
          nb::keep_alive<1, 2>(), "queue"_a, "query"_a, "request"_a, "reserved"_a, "tenant"_a, "priority"_a,
          "deadline"_a, "room_bytes"_a)
      .def("run", &BoundCall::run, "arrived"_a)
      .def("end", &BoundCall::end)
      .def_prop_ro("has_started", &BoundCall::has_started)
      .def_prop_ro("reply", &BoundCall::reply, nb::sig("def reply(self, /) -> bytes | None"))
      .def_prop_ro("stages", &BoundCall::stages)
      .def_prop_ro("overdue_limit", &BoundCall::overdue_limit)
      .def_prop_ro("total_milliseconds", &BoundCall::total);
}

}  // namespace

void bind_serving_passes(nb::module_& m) {
  bind_requests(m);
  bind_queries(m);
  bind_calls(m);
}

}  // namespace lumigrad
