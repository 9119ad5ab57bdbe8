// Python bindings of calls that native jobs answer, whose requests differ only in their payload.
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

void bind_requests(nb::module_& m) {
  nb::class_<Bound<QueryRequest>>(m, "QueryRequest")
      .def_ro("scene_id", &Bound<QueryRequest>::name)
      .def_prop_ro("version", [](const Bound<QueryRequest>& b) { return b.request.scene.version; })
      .def_prop_ro("key",
                   [](const Bound<QueryRequest>& b) { return nb::bytes(b.request.key.data(), b.request.key.size()); })
      .def_prop_ro("payload_bytes", [](const Bound<QueryRequest>& b) { return b.request.payload.size(); });
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

// A query with the objects that its pointers refer to.
struct BoundQuery {
  std::shared_ptr<const DistanceQuery> query;
  std::shared_ptr<DistanceEngine> engine;
  nb::object world;
  Envelope envelope;
  Demand demand;
};

// The call of a query.
struct QueryCall : BoundCall {
  using BoundCall::BoundCall;
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
           "bytes"_a)
      .def_prop_ro("staging_bytes", [](const BoundQuery& b) { return b.engine->staging_bytes(*b.query); });
}

void bind_calls(nb::module_& m) {
  nb::class_<BoundCall>(m, "NativeCall")
      .def("run", &BoundCall::run, "arrived"_a)
      .def("end", &BoundCall::end)
      .def_prop_ro("has_started", &BoundCall::has_started)
      .def_prop_ro("reply", &BoundCall::reply, nb::sig("def reply(self, /) -> bytes | None"))
      .def_prop_ro("stages", &BoundCall::stages)
      .def_prop_ro("overdue_limit", &BoundCall::overdue_limit)
      .def_prop_ro("total_milliseconds", &BoundCall::total);
  nb::class_<QueryCall, BoundCall>(m, "QueryCall")
      .def(
          "__init__",
          [](QueryCall* self, Queue& queue, const nb::object& query, const nb::object& request,
             const nb::object& staging, const nb::object& reserved, std::string tenant, int priority, double deadline,
             std::int64_t room_bytes) {
            const auto& kind = nb::cast<const BoundQuery&>(query);
            const CallContext context{queue, staging, reserved, std::move(tenant), priority, deadline, room_bytes};
            new (self) QueryCall(context, kind.envelope, kind.engine->job(context.complete(kind.demand), kind.query),
                                 nb::cast<const Bound<QueryRequest>&>(request).request.payload,
                                 nb::make_tuple(query, request), kind.engine->staging_bytes(*kind.query));
          },
          nb::keep_alive<1, 2>(), "queue"_a, "query"_a, "request"_a, "staging"_a.none(), "reserved"_a, "tenant"_a,
          "priority"_a, "deadline"_a, "room_bytes"_a);
}

}  // namespace

void bind_retained(nb::module_& m);

void bind_serving_passes(nb::module_& m) {
  bind_requests(m);
  bind_queries(m);
  bind_calls(m);
  bind_retained(m);
}

}  // namespace lumigrad
