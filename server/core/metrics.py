"""All Prometheus metrics of a worker."""

from __future__ import annotations

import functools
from collections import Counter as PlainCounter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lumigrad.kernels._native import RecordBatch
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.errors import REASONS
from lumigrad.server.core.histograms import Histograms
from lumigrad.server.core.record import CallRecord

# Buckets from the smallest kernel stage (tens of microseconds) to a minute.
_SECONDS = (
    *(50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
_VIEWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)

_KERNEL = "kernel."
# Stages of a call outside its kernels.
_STAGES = (
    *("decode", "restore", "pages", "queue", "upload", "download", "compress", "encode"),
    *("loss", "optimize", "snapshot"),
)
_ENGINES = ("spheres", "gaussians", "meshes")
# The states of a call in progress: receiving its request, queued, running, or sending its reply.
CALL_STAGES = ("receive", "queue", "device", "send")
REFUSALS = ("busy", "deadline", "device_memory", "invalid_argument", "stopping", "unauthenticated")
_SPOOLED = ("scene", "training")
WRITE_RESULTS = ("written", "unwanted", "failed", "no_room")
READ_RESULTS = ("read", "damaged", "failed")
# Bounded, because each label is another time series.
_MAX_TENANTS = 64
_OTHERS = "(others)"
# Gauges without labels: name after `lumigrad_`, and help text.
_GAUGES = {
    "up": "1 while the worker's health is SERVING.",
    "start_time_seconds": "Unix time at which the worker started serving.",
    "queue_depth": "Calls that wait for the device.",
    "queue_limit": "Maximum number of calls that wait for the device.",
    "calls_in_progress": "Calls in progress.",
    "calls_limit": "Maximum number of calls in progress.",
    "call_threads": "Threads that answer calls.",
    "call_threads_busy": "Threads that are processing a call.",
    "transit_bytes": "Payload bytes of calls in progress.",
    "transit_limit_bytes": "Maximum payload bytes of calls in progress.",
    "pinned_bytes": "Bytes of host memory that is registered with CUDA for payloads, in use or kept, without lanes.",
    "lanes": "Open shared-memory lanes.",
    "lane_bytes": "Bytes of shared memory in lanes.",
    "lane_limit_bytes": "Maximum bytes of shared memory in lanes.",
    "scenes": "Stored scenes.",
    "scene_bytes": "Bytes of stored scenes.",
    "scene_limit_bytes": "Maximum bytes of stored scenes.",
    "contexts": "Retained forward states.",
    "context_bytes": "Bytes of retained forward states.",
    "context_limit_bytes": "Maximum bytes of retained forward states.",
    "spool_files": "Files in the spool.",
    "spool_bytes": "Bytes of files in the spool.",
    "spool_limit_bytes": "Maximum bytes of files in the spool.",
    "spool_waiting": "Blobs that are not written to the spool yet.",
    "trainings": "Open trainings.",
    "training_bytes": "Bytes reserved for trainings.",
    "training_limit_bytes": "Maximum bytes reserved for trainings.",
    "predicted_bytes": "Predicted device memory of running and queued calls, in bytes.",
    "device_memory_limit_bytes": "Maximum device memory for calls and stored data, in bytes.",
    "device_memory_bytes": "Total memory of the device, in bytes.",
    "device_memory_free_bytes": "Free memory of the device, in bytes.",
}


class Metrics:
    """The worker's counters, gauges and histograms, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        # Called before the metrics are read, to update them.
        self.before_read: Callable[[], None] = lambda: None
        registry.register(_Before(self))
        # `_created` series would double the number of series and are not used.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        ProcessCollector(registry=registry)
        counter = functools.partial(Counter, namespace="lumigrad", registry=registry)
        gauge = functools.partial(Gauge, namespace="lumigrad", registry=registry)
        histograms = functools.partial(Histograms, buckets=_SECONDS, registry=registry)
        self.calls = counter("calls", "Calls that have ended.", ["method", "code"])
        self.call_seconds = histograms("call_seconds", "Duration of a call from its arrival to its end.", ["method"])
        self.stage_seconds = histograms(
            "stage_seconds", "Duration of the stages of a call outside the kernels.", ["stage"]
        )
        self.kernel_seconds = histograms(
            "kernel_seconds", "Duration of kernel stages, measured on the device.", ["engine", "op", "stage"]
        )
        self.batch_views = Histograms(
            "batch_views", "Views per batch of calls that can be batched.", [], buckets=_VIEWS, registry=registry
        )
        self.bytes = counter("payload_bytes", "Payload bytes received and sent.", ["method", "direction"])
        self.batch_items = counter("batch_items", "Items of RenderBatch calls that were answered.", ["code"])
        self.rejections = counter("rejections", "Calls refused before they reached the device.", ["reason"])
        self.evictions = counter("evictions", "Stored objects evicted for lack of memory or use.", ["store", "reason"])
        self.scene_puts = counter("scene_puts", "Scene uploads, by whether the content was already stored.", ["result"])
        self.context_lookups = counter("context_lookups", "Look-ups of forward states.", ["result"])
        self.lane_fallbacks = counter("lane_fallbacks", "Uses of the stream in place of shared memory.", ["reason"])
        self.nonfinite_gradients = counter(
            "nonfinite_gradients", "NaN or infinite values in gradients that were sent.", ["engine"]
        )
        self.tenant_calls = counter("tenant_calls", "Calls of a tenant.", ["tenant"])
        self.tenant_bytes = counter("tenant_payload_bytes", "Payload bytes of a tenant, received and sent.", ["tenant"])
        self.unknown_tracks = counter(
            "sensorsim_unknown_tracks", "Moved tracks in requests of driving simulators that the scene does not have."
        )
        self.spans = counter("trace_spans", "Trace spans of calls.", ["result"])
        self.spool_writes = counter("spool_writes", "Writes to the spool.", ["kind", "result"])
        self.spool_reads = counter("spool_reads", "Reads from the spool.", ["kind", "result"])
        self._shortages = counter("memory_shortages", "Failed allocations of device memory.", ["result"])
        self._tenants: set[str] = set()
        self._restarts = counter("worker_restarts", "Restarts of the worker by the supervisor.")
        self._last_exit = gauge("worker_last_exit", "1 for the reason for which the previous worker ended.", ["reason"])
        self._calls_in_stage = gauge("calls_in_stage", "Calls in progress, by stage.", ["stage"])
        self._show_zeros()
        self._gauges = {name: gauge(name, text) for name, text in _GAUGES.items()}

    def _show_zeros(self) -> None:
        """Create series at 0: otherwise the first event of a kind would not show as an increase."""
        for counter, series in {
            self.evictions: (
                ("scenes", "room"),
                ("pages", "room"),
                ("contexts", "room"),
                ("contexts", "idle"),
                ("contexts", "size"),
                ("spool", "room"),
            ),
            self.rejections: [(reason,) for reason in REFUSALS],
            self.scene_puts: (("stored",), ("present",)),
            self.batch_items: (("OK",),),
            self.context_lookups: (("found",), ("lost",)),
            self.lane_fallbacks: (("full",), ("lost",), ("refused",)),
            self.nonfinite_gradients: [(engine,) for engine in _ENGINES],
            self.spans: (("exported",), ("lost",)),
            self.spool_writes: [(kind, result) for kind in _SPOOLED for result in WRITE_RESULTS],
            self.spool_reads: [(kind, result) for kind in _SPOOLED for result in READ_RESULTS],
            self._shortages: (("relieved",), ("failed",)),
        }.items():
            for labels in series:
                counter.labels(*labels)
        self.batch_views.show()
        for stage in _STAGES:
            self.stage_seconds.show(stage)

    def observe(self, name: str, read: Callable[[], float]) -> None:
        """Set the function that returns a gauge's value."""
        self._gauges[name].set_function(read)

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name].set(value)

    def accounts(self, by_resource: Mapping[str, Account]) -> None:
        """Show the accounts of shared resources."""
        self.registry.register(_Accounts(by_resource, self._tenants))

    def shortage(self, was_relieved: bool) -> None:
        """Record a memory shortage, and whether emptying caches resolved it."""
        self._shortages.labels("relieved" if was_relieved else "failed").inc()

    def remember(self, restarts: int, last_exit: str) -> None:
        """Show the restarts and the last exit of the workers before this one."""
        self._restarts.inc(restarts)
        for reason in REASONS:
            self._last_exit.labels(reason).set(reason == last_exit)

    def calls_ended(self, records: Sequence[CallRecord]) -> None:
        """Record calls that have ended, in groups: in a batch, most have the same labels."""
        alike: dict[tuple[str, str, str, str, str], list[CallRecord]] = {}
        for record in records:
            kind = record.method, record.code, record.tenant, record.engine, record.operation
            alike.setdefault(kind, []).append(record)
        for (method, code, tenant, engine, operation), group in alike.items():
            received = sum([record.bytes_received for record in group])
            sent = sum([record.bytes_sent for record in group])
            self._count(method, code, tenant, len(group), received, sent)
            self.call_seconds.observe_all([record.milliseconds / 1e3 for record in group], method)
            self._stages(engine, operation, [record.stages for record in group])
            self.batch_views.observe_all([record.batch_views for record in group if record.batch_views])
        for record in records:
            self._unusual(record)

    def native_calls_ended(self, batch: RecordBatch) -> None:
        """Record calls that ran without Python, all of them successful."""
        for group in batch.alike(_SECONDS):
            self._count(group.method, "OK", group.tenant, group.calls, group.bytes_received, group.bytes_sent)
            self.call_seconds.add(group.seconds.counts, group.seconds.total, group.method)
            for stage, seconds in group.stages:
                histogram, labels = self._of_stage(group.engine, group.operation, stage)
                histogram.add(seconds.counts, seconds.total, *labels)
            self.batch_views.observe_all(group.batch_views)

    def _count(self, method: str, code: str, tenant: str, calls: int, received: int, sent: int) -> None:
        """Count calls with the same labels, and their bytes."""
        self.calls.labels(method, code).inc(calls)
        self.bytes.labels(method, "received").inc(received)
        self.bytes.labels(method, "sent").inc(sent)
        if tenant:
            # Tenants after the first `_MAX_TENANTS` share a label.
            if len(self._tenants) < _MAX_TENANTS:
                self._tenants.add(tenant)
            label = tenant if tenant in self._tenants else _OTHERS
            self.tenant_calls.labels(label).inc(calls)
            self.tenant_bytes.labels(label).inc(received + sent)

    def _unusual(self, record: CallRecord) -> None:
        """Record facts that few calls have."""
        for code in record.item_codes:
            self.batch_items.labels(code).inc()
        if record.reason in REFUSALS:
            self.rejections.labels(record.reason).inc()
        if record.nonfinite:
            self.nonfinite_gradients.labels(record.engine).inc(record.nonfinite)

    def stages(self, engine: str, op: str, milliseconds: Mapping[str, float]) -> None:
        """Record the stages of one call; names beginning with "kernel." are kernel stages."""
        self._stages(engine, op, [milliseconds])

    def _stages(self, engine: str, op: str, calls: Sequence[Mapping[str, float]]) -> None:
        seconds: dict[str, list[float]] = {}
        for milliseconds in calls:
            # A job that nobody waits for any more may still add stages.
            for stage, value in list(milliseconds.items()):
                if stage in seconds:
                    seconds[stage].append(value / 1e3)
                else:
                    seconds[stage] = [value / 1e3]
        for stage, values in seconds.items():
            histogram, labels = self._of_stage(engine, op, stage)
            histogram.observe_all(values, *labels)

    def _of_stage(self, engine: str, op: str, stage: str) -> tuple[Histograms, tuple[str, ...]]:
        if stage.startswith(_KERNEL):
            return self.kernel_seconds, (engine, op, stage.removeprefix(_KERNEL))
        return self.stage_seconds, (stage,)

    def observe_total(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show what `read` returns as a counter."""
        self.registry.register(_Total(f"lumigrad_{name}", text, read))

    def describe(self, **labels: str) -> None:
        """Show properties of this worker as labels of a gauge whose value is 1."""
        text = "1, with properties of the worker as labels."
        Gauge("lumigrad_worker_info", text, list(labels), registry=self.registry).labels(**labels).set(1)

    def observe_stages(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Set the function that returns the calls in progress by stage."""
        for stage in CALL_STAGES:
            self._calls_in_stage.labels(stage).set_function(functools.partial(lambda name: read()[name], stage))


class _Before(Collector):
    """Calls `before_read`: registered first, so collected first; has no metrics itself."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Update the metrics; returns none of its own."""
        self._metrics.before_read()
        return iter(())


class _Total(Collector):
    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterator[Metric]:
        """Yield the counter with its current value."""
        yield CounterMetricFamily(self._name, self._text, value=self._read())


class _Accounts(Collector):
    def __init__(self, by_resource: Mapping[str, Account], tenants: Collection[str]) -> None:
        """Create the collector; `tenants` are the tenants with a label of their own."""
        self._by_resource, self._tenants = by_resource, tenants

    def collect(self) -> Iterator[Metric]:
        """Yield the amounts reserved, by resource and by tenant, and the limits."""
        taken = GaugeMetricFamily(
            "lumigrad_account_taken", "Reserved amount of a shared resource.", labels=["resource"]
        )
        limit = GaugeMetricFamily(
            "lumigrad_account_limit", "Maximum reserved amount of a shared resource.", labels=["resource"]
        )
        text = "Amount of a shared resource that a tenant has reserved."
        of_tenants = GaugeMetricFamily("lumigrad_tenant_taken", text, labels=["resource", "tenant"])
        for resource, account in self._by_resource.items():
            taken.add_metric([resource], account.taken)
            limit.add_metric([resource], account.limit)
            by_label = PlainCounter(dict.fromkeys(self._tenants, 0))
            for tenant, amount in account.tenants().items():
                if tenant:
                    by_label[tenant if tenant in self._tenants else _OTHERS] += amount
            for label, amount in by_label.items():
                of_tenants.add_metric([resource, label], amount)
        yield from (taken, limit, of_tenants)
