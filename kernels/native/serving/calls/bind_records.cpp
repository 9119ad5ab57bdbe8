// Python bindings of the records of calls that ran without Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serving/calls/records.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace serving;

// Records of many calls, which are summed up, written and freed without the GIL.
struct Batch {
  explicit Batch(std::vector<ShortRecord> taken) : records(std::move(taken)) {}
  Batch(Batch&&) = default;
  ~Batch() {
    if (records.empty()) return;
    nb::gil_scoped_release unlocked;
    records.clear();
  }

  std::vector<ShortRecord> records;
};

using Quote = std::function<std::string(const std::string&)>;

// Calls `quote` once per tenant.
std::vector<std::string> blocks(const Batch& batch, bool is_json, std::size_t most_bytes, const Quote& quote) {
  std::map<std::string, std::string> quoted{{"", ""}};
  for (const ShortRecord& record : batch.records) {
    if (quoted.find(record.tenant) == quoted.end()) quoted.emplace(record.tenant, quote(record.tenant));
  }
  nb::gil_scoped_release unlocked;
  return log_blocks(batch.records, is_json ? LogFormat::kJson : LogFormat::kPlain, most_bytes, quoted);
}

nb::list tuples(const Batch& batch) {
  nb::list found;
  for (const ShortRecord& record : batch.records) {
    found.append(nb::make_tuple(record.request_id, record.method, record.tenant, record.milliseconds, record.ended_at,
                                record.bytes_received, record.bytes_sent));
  }
  return found;
}

}  // namespace

void bind_serving_records(nb::module_& m) {
  nb::class_<Buckets>(m, "Buckets").def_ro("counts", &Buckets::counts).def_ro("total", &Buckets::total);
  nb::class_<AlikeCalls>(m, "AlikeCalls")
      .def_ro("method", &AlikeCalls::method)
      .def_ro("tenant", &AlikeCalls::tenant)
      .def_ro("engine", &AlikeCalls::engine)
      .def_ro("operation", &AlikeCalls::operation)
      .def_ro("calls", &AlikeCalls::calls)
      .def_ro("bytes_received", &AlikeCalls::bytes_received)
      .def_ro("bytes_sent", &AlikeCalls::bytes_sent)
      .def_ro("seconds", &AlikeCalls::seconds)
      .def_ro("stages", &AlikeCalls::stages, "Seconds by stage.")
      .def_ro("batch_views", &AlikeCalls::batch_views);
  nb::class_<Batch>(m, "RecordBatch")
      .def("__len__", [](const Batch& batch) { return batch.records.size(); })
      .def(
          "alike",
          [](const Batch& batch, const std::vector<double>& bounds) {
            nb::gil_scoped_release unlocked;
            return alike_calls(batch.records, bounds);
          },
          "bounds"_a, "The calls by their labels, and values in buckets with these ascending bounds.")
      .def("blocks", &blocks, nb::kw_only(), "is_json"_a, "most_bytes"_a, "quote"_a,
           "The log lines, in blocks of up to so many bytes.")
      .def("tuples", &tuples,
           "Request id, method, tenant, milliseconds, end (seconds since 1970), bytes received and sent.");
  nb::class_<Records>(m, "Records")
      .def(nb::init<>())
      .def(
          "add",
          [](Records& records, std::string method, std::string request_id, std::string tenant, std::string engine,
             std::vector<std::pair<std::string, double>> stages, double milliseconds, double ended_at,
             std::size_t bytes_sent, int batch_views, std::size_t bytes_received, std::string operation) {
            records.add({std::move(method), std::move(request_id), std::move(tenant), std::move(engine),
                         std::move(stages), milliseconds, ended_at, bytes_sent, batch_views, bytes_received,
                         std::move(operation)});
          },
          nb::kw_only(), "method"_a, "request_id"_a, "tenant"_a, "engine"_a, "stages"_a, "milliseconds"_a, "ended_at"_a,
          "bytes_sent"_a, "batch_views"_a, "bytes_received"_a, "operation"_a)
      .def("take", [](Records& records) { return Batch{records.take()}; }, "All since the last time.");
}

}  // namespace lumigrad
