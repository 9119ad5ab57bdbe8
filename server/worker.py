"""One worker process: everything that serves, from the ports down to the device."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lumigrad.kernels.device import describe, resolve
from lumigrad.protos.service import RENDER_SERVICE, SCENE_SERVICE, SERVICE_NAMES, WORKER_SERVICE, method_handlers
from lumigrad.server import logs
from lumigrad.server.config import MIB, Config, ConfigError
from lumigrad.server.contexts import ContextStore
from lumigrad.server.executor import DeviceExecutor
from lumigrad.server.heartbeat import Heartbeat
from lumigrad.server.limits import Limits
from lumigrad.server.metrics import Metrics
from lumigrad.server.render_service import RenderService
from lumigrad.server.renderer import Renderer, Retained
from lumigrad.server.runtime import Runtime
from lumigrad.server.scene_service import SceneService
from lumigrad.server.scenes import SceneStore
from lumigrad.server.surface import Surface
from lumigrad.server.transfer import Transfer
from lumigrad.server.transit import Transit
from lumigrad.server.warm_up import warm_up
from lumigrad.server.worker_service import WorkerService

# Calls that are receiving or sending while others wait for the device.
_CALLS_BESIDE_QUEUE = 32
# Threads for health checks and reflection, which must be answered when every call is taken.
_THREADS_BESIDE_CALLS = 8
_HOUSEKEEPING_SECONDS = 1.0
# The time for the last bytes of finished calls to leave.
_FLUSH_SECONDS = 1.0
# The time for those who call in a loop to be refused.
_REFUSING_SECONDS = 0.25


class Worker:
    """Serves one device until it is told to stop."""

    def __init__(self, config: Config) -> None:
        """Take the device and both ports; whatever is not to be had is a ConfigError."""
        self._config = config
        try:
            self._device = resolve(config.device)
        except ValueError as error:
            raise ConfigError(f"--device: {error}") from None
        self._metrics = Metrics()
        max_calls = config.queue_size + _CALLS_BESIDE_QUEUE
        self._surface = Surface(self._metrics, max_calls, config.max_call_seconds)
        self._runtime = _runtime(config, self._device, self._metrics)
        self._health = health.HealthServicer()
        self._heartbeat = Heartbeat(self._runtime.executor, lambda: warm_up(self._runtime), self._tell_health)
        self._server = self._make_server(max_calls + _THREADS_BESIDE_CALLS)
        self.port = self._bind()
        self.metrics_port = self._serve_metrics()

    def start(self) -> None:
        """Prove the device with a small render, then serve."""
        warm_up(self._runtime)
        self._server.start()
        self._tell_health(True)
        threading.Thread(target=self._keep_house, name="housekeeping", daemon=True).start()
        described = describe(self._device)
        if self._config.device == "auto" and self._device.type == "cpu":
            logs.event("no usable CUDA device: rendering on the CPU", logging.WARNING)
        logs.event(
            "serving",
            host=self._config.host,
            port=self.port,
            metrics_port=self.metrics_port,
            device=described.name,
            device_name=described.device_name,
            instruction_set=described.instruction_set,
            cuda_built=described.cuda_built,
        )

    def stop(self) -> None:
        """Say NOT_SERVING, let callers notice, then let the calls in progress end."""
        config = self._config
        self._health.enter_graceful_shutdown()
        logs.event("draining", calls=self._surface.in_progress)
        time.sleep(config.lame_duck_seconds)
        self._surface.close()
        is_idle = self._surface.wait_idle(config.drain_seconds)
        logs.event("stopped" if is_idle else "stopped with calls in progress", calls=self._surface.in_progress)
        # Whoever has just been served may be calling again: let them hear UNAVAILABLE, not CANCELLED.
        time.sleep(_REFUSING_SECONDS)
        # Replies already written may still be on their way; health watchers stay until they are sent away.
        self._server.stop(_FLUSH_SECONDS).wait()
        self._runtime.executor.close()

    def _make_server(self, threads: int) -> grpc.Server:
        options = (
            # Without this a second worker would bind the same port and take half of the calls.
            ("grpc.so_reuseport", 0),
            # Notice callers whose machine has gone.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        )
        server = grpc.server(ThreadPoolExecutor(threads, "call"), options=options, maximum_concurrent_rpcs=threads)
        servicers = {
            RENDER_SERVICE: RenderService(self._runtime),
            SCENE_SERVICE: SceneService(self._runtime),
            WORKER_SERVICE: WorkerService(self._runtime),
        }
        for name, servicer in servicers.items():
            server.add_generic_rpc_handlers((method_handlers(name, self._surface.wrap(name, servicer)),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._config.is_loopback:
            names = (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        return server

    def _bind(self) -> int:
        address = f"{self._config.url_host}:{self._config.port}"
        try:
            return int(self._server.add_insecure_port(address))
        except RuntimeError:
            raise ConfigError(f"--port: cannot listen on {address}; is another process using it?") from None

    def _serve_metrics(self) -> int:
        host, port = self._config.host, self._config.metrics_port
        runtime = self._runtime
        self._metrics.observe("queue_depth", lambda: runtime.executor.depth)
        self._metrics.observe("calls_in_progress", lambda: self._surface.in_progress)
        self._metrics.observe("scenes", lambda: len(runtime.scenes))
        self._metrics.observe("scene_bytes", lambda: runtime.scenes.bytes)
        self._metrics.observe("transit_bytes", lambda: runtime.transit.bytes)
        self._metrics.observe("contexts", lambda: len(runtime.contexts))
        self._metrics.observe("context_bytes", lambda: runtime.contexts.bytes)
        self._metrics.observe("device_memory_bytes", lambda: describe(self._device).memory_bytes)
        self._metrics.observe("device_memory_free_bytes", lambda: describe(self._device).memory_free_bytes)
        try:
            return self._metrics.serve(host, port)
        except OSError:
            raise ConfigError(f"--metrics-port: cannot listen on {host}:{port}; is another process using it?") from None

    def _tell_health(self, works: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", *SERVICE_NAMES):
            self._health.set(name, status.SERVING if works else status.NOT_SERVING)

    def _keep_house(self) -> None:
        while True:
            time.sleep(_HOUSEKEEPING_SECONDS)
            self._runtime.contexts.expire()
            self._surface.end_overdue()
            self._heartbeat.beat()


def _runtime(config: Config, chosen: torch.device, metrics: Metrics) -> Runtime:
    transfer = Transfer(chosen)
    contexts: ContextStore[Retained] = ContextStore(config.context_mib * MIB, config.context_seconds, metrics)
    return Runtime(
        limits=Limits.of(config),
        transfer=transfer,
        transit=Transit(config.transit_mib * MIB, transfer.allocate),
        executor=DeviceExecutor(chosen, config.queue_size),
        scenes=SceneStore(config.scene_mib * MIB, metrics),
        contexts=contexts,
        renderer=Renderer(transfer),
    )
