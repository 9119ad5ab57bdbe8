// Python bindings of the progress of a call with its caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "serving/calls/progress.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {

void bind_serving_progress(nb::module_& m) {
  using serving::Progress, serving::Wait;
  m.attr("PROGRESS_BYTES") = serving::kProgressBytes;
  nb::class_<Wait>(m, "Wait",
                   "The time that a call has waited for its caller since the last progress; in `with` blocks.")
      .def_prop_ro("is_on", &Wait::is_on, "Whether the call is waiting.")
      .def_prop_ro("seconds", &Wait::seconds, "The time waited, without the time in which the worker was busy.")
      .def("__enter__", &Wait::begin)
      .def("__exit__", [](Wait& wait, const nb::args&) { wait.end(); })
      .def("moved", &Wait::moved, "nbytes"_a, "Count bytes that were received or sent.")
      .def("restart", &Wait::restart, "Reset the time and the bytes.");
  nb::class_<Progress>(m, "Progress", "What a call has received and sent so far.")
      .def(nb::init<>())
      .def_ro("receiving", &Progress::receiving, "The wait for the request.")
      .def_ro("sending", &Progress::sending, "The wait for the caller to take the reply.")
      .def_rw("has_begun", &Progress::has_begun, "Whether the first message has arrived.")
      .def_ro("is_long", &Progress::is_long, "Whether the call has many requests.")
      .def_rw("is_payload_due", &Progress::is_payload_due,
              "Whether a long call has received part of a request, but not its whole payload.")
      .def_prop_ro(
          "renewed", [](const Progress& self) { return serving::seconds_of(self.renewed.time_since_epoch()); },
          "When a long call's last request arrived or was answered (monotonic clock).")
      .def("renew", &Progress::renew, "Restart the time limit of a long call: a request arrived or was answered.");
}

}  // namespace lumigrad
