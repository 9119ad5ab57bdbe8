"""All Prometheus metrics of a worker, and the HTTP port that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

# From the smallest kernel stage (tens of microseconds) to a minute.
_SECONDS = (
    *(50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)

_KERNEL = "kernel."


class Metrics:
    """The worker's counters, gauges and histograms, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.calls = Counter("lumigrad_calls", "Calls that ended.", ["method", "code"], registry=registry)
        self.call_seconds = Histogram(
            "lumigrad_call_seconds", "Time from a call's arrival to its end.", ["method"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.stage_seconds = Histogram(
            "lumigrad_stage_seconds", "Time of a call's stages outside the kernels.", ["stage"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.kernel_seconds = Histogram(
            "lumigrad_kernel_seconds", "Time of a kernel's stages, by its own timers.", ["engine", "op", "stage"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.bytes = Counter(
            "lumigrad_payload_bytes", "Payload received and sent.", ["method", "direction"], registry=registry
        )
        self.rejections = Counter(
            "lumigrad_rejections", "Calls refused before they reached a kernel.", ["reason"], registry=registry
        )
        self.evictions = Counter(
            "lumigrad_evictions", "Stored things dropped for lack of room or use.", ["store", "reason"],
            registry=registry,
        )  # fmt: skip
        self._gauges = {name: Gauge(f"lumigrad_{name}", text, registry=registry) for name, text in _GAUGES.items()}

    def observe(self, name: str, read: Callable[[], float]) -> None:
        """Let a gauge show what `read` returns when it is asked for."""
        self._gauges[name].set_function(read)

    def stages(self, engine: str, op: str, milliseconds: Mapping[str, float]) -> None:
        """Record the stages of one call: those called "kernel.…" as the kernels' own."""
        for stage, value in milliseconds.items():
            if stage.startswith(_KERNEL):
                self.kernel_seconds.labels(engine, op, stage.removeprefix(_KERNEL)).observe(value / 1e3)
            else:
                self.stage_seconds.labels(stage).observe(value / 1e3)

    def serve(self, host: str, port: int) -> int:
        """Show the metrics over HTTP; returns the port. One in use is an OSError."""
        server, _ = start_http_server(port, host, self.registry)
        return int(server.server_port)


_GAUGES = {
    "queue_depth": "Calls that wait for the device.",
    "calls_in_progress": "Calls that have not ended.",
    "transit_bytes": "Bytes of the payloads of calls in progress.",
    "scenes": "Scenes stored.",
    "scene_bytes": "Bytes of the scenes stored.",
    "contexts": "Forward states retained.",
    "context_bytes": "Bytes of the forward states retained.",
    "device_memory_bytes": "Memory of the device.",
    "device_memory_free_bytes": "Memory of the device that is free.",
}
