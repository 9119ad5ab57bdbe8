"""The HTTP port of the metrics, and the gauges that are read on request."""

from __future__ import annotations

import io
import logging
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from lumigrad.kernels.device import describe
from lumigrad.server.core import logs
from lumigrad.server.core.config import MIB, Config, FileVersion, file_version
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.ports import unusable
from lumigrad.server.device.capacity import store_limits
from lumigrad.server.engines.runner import Machine
from lumigrad.server.rpc.handler import CallHandler
from lumigrad.server.rpc.server import CallThreads
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.storage.spool_writer import SpoolWriter
from lumigrad.server.storage.tenants import Tenants


def show_state(
    metrics: Metrics,
    machine: Machine,
    tenants: Tenants,
    lanes: Lanes,
    handler: CallHandler,
    spool: SpoolWriter | None,
    threads: CallThreads,
    is_serving: Callable[[], bool],
) -> None:
    """Connect the gauges to the parts of a worker."""
    executor, device = machine.executor, machine.transfer.device
    metrics.accounts(
        {
            "transit": machine.payload_memory.account,
            "open_trainings": handler.trainings,
            "open_streams": handler.streams,
            **tenants.accounts,
        }
    )
    for name, read in {
        "up": is_serving,
        "queue_depth": lambda: executor.queue.depth,
        "calls_in_progress": lambda: handler.in_progress,
        "call_threads_busy": lambda: threads.busy,
        "transit_bytes": lambda: machine.payload_memory.account.taken,
        "pinned_bytes": lambda: machine.transfer.pinned_bytes,
        "lanes": lambda: len(lanes),
        "lane_bytes": lambda: lanes.memory_bytes,
        **tenants.gauges(),
        "predicted_bytes": lambda: executor.queue.predicted_bytes,
        "device_memory_bytes": lambda: describe(device).memory_bytes,
        "device_memory_free_bytes": lambda: describe(device).memory_free_bytes,
    }.items():
        metrics.observe(name, read)
    if spool is not None:
        writer, files = spool, spool.spool
        metrics.observe("spool_files", lambda: len(files))
        metrics.observe("spool_bytes", lambda: files.bytes)
        metrics.observe("spool_waiting", lambda: writer.depth)
    text = "Time that the device's thread worked."
    metrics.observe_total("device_busy_seconds", text, lambda: executor.queue.busy_seconds)
    metrics.observe_stages(lambda: handler.stages(executor.queue.depth))


def show_setup(metrics: Metrics, config: Config, machine: Machine, max_calls: int, threads: CallThreads) -> None:
    """Show a worker's description and limits."""
    described = describe(machine.transfer.device)
    limits = store_limits(config, machine.memory.capacity_bytes)
    metrics.describe(
        version=version("lumigrad"),
        device=described.name,
        device_name=described.device_name,
        instruction_set=described.instruction_set,
    )
    for name, value in {
        "start_time_seconds": time.time(),
        "queue_limit": config.queue_size,
        "calls_limit": max_calls,
        "call_threads": threads.count,
        "transit_limit_bytes": config.transit_mib * MIB,
        "lane_limit_bytes": config.lane_mib * MIB,
        "scene_limit_bytes": limits.scene_bytes,
        "context_limit_bytes": config.context_mib * MIB,
        "training_limit_bytes": limits.training_bytes,
        "device_memory_limit_bytes": machine.memory.capacity_bytes,
        "spool_limit_bytes": config.spool_mib * MIB if config.spool else 0,
    }.items():
        metrics.set(name, value)


# Silent connections are closed, because each holds a thread.
_SILENT_SECONDS = 10.0
# Path for probes that only speak HTTP, such as those of Kubernetes if calls are encrypted.
HEALTH_PATH = "/health"

_Start = Callable[[str, list[tuple[str, str]]], Any]


def _note_error(request: Any, client_address: Any) -> None:
    """Log the error of a connection, unless its caller has vanished or was silent."""
    error = sys.exc_info()[1]
    if not isinstance(error, OSError):
        logs.event("a request for metrics failed", logging.WARNING, error=error)


class MetricsPort:
    """Serves the metrics over HTTP."""

    def __init__(self, config: Config, registry: CollectorRegistry, is_serving: Callable[[], bool]) -> None:
        """Listen; raises ConfigError if that is impossible. The files of --tls-cert have been checked already."""
        self._config, self._is_serving = config, is_serving
        self._metrics = make_wsgi_app(registry)
        self._versions = self._file_versions()
        tls: dict[str, Any] = {}
        if config.metrics_tls:
            tls = {"certfile": config.tls_cert, "keyfile": config.tls_key}
        if config.metrics_tls and config.tls_client_ca:
            tls |= {"client_cafile": config.tls_client_ca, "client_auth_required": True}
        host, port = config.metrics_address, config.metrics_port
        try:
            self._server, _ = start_http_server(port, host, registry, **tls)
        except OSError as error:
            raise unusable("--metrics-port", host, port, error) from None
        self._server.set_app(self._answer)
        self._server.RequestHandlerClass.timeout = _SILENT_SECONDS  # type: ignore[attr-defined]
        # Otherwise they would write tracebacks to the log, in no format, also of callers that vanish.
        self._server.RequestHandlerClass.get_stderr = lambda _: io.StringIO()  # type: ignore[attr-defined]
        self._server.handle_error = _note_error  # type: ignore[method-assign]
        self.port = int(self._server.server_port)
        socket = self._server.socket
        if isinstance(socket, ssl.SSLSocket):
            # Otherwise the accepting thread would wait for each caller's handshake.
            socket.do_handshake_on_connect = False  # type: ignore[attr-defined]

    def refresh(self) -> None:
        """Load a replaced certificate; an invalid certificate changes nothing."""
        socket = self._server.socket
        versions, config = self._file_versions(), self._config
        if versions == self._versions or not isinstance(socket, ssl.SSLSocket):
            return
        try:
            # Check the pair in a separate context first: a wrong key would leave a half-replaced pair in the active
            # context.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key, lambda: "")
            socket.context.load_cert_chain(config.tls_cert, config.tls_key)
        except OSError as error:
            logs.event(
                "cannot read the metrics' certificate; the previous one stays in use",
                logging.WARNING,
                why=type(error).__name__,
            )
            return
        self._versions = versions

    def _answer(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] != HEALTH_PATH:
            try:
                page: Iterable[bytes] = self._metrics(environ, start)
            except Exception as error:
                # The library raises it for some headers that it cannot read.
                logs.event("a request for metrics failed", logging.WARNING, error=error)
                start("500 Internal Server Error", [("Content-Type", "text/plain")])
                page = [b"the metrics cannot be shown; the log says why\n"]
            return page
        is_serving = self._is_serving()
        start("200 OK" if is_serving else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"SERVING\n" if is_serving else b"NOT_SERVING\n"]

    def _file_versions(self) -> tuple[FileVersion, ...]:
        return file_version(self._config.tls_cert), file_version(self._config.tls_key)
