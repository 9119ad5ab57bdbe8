"""One worker process: everything that serves, from the ports down to the device."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from lumigrad.kernels.device import cuda_lack, describe, resolve
from lumigrad.protos.service import (
    DISTANCE_SERVICE,
    RENDER_SERVICE,
    SCENE_SERVICE,
    SERVICE_NAMES,
    TRAINING_SERVICE,
    WORKER_SERVICE,
    method_handlers,
)
from lumigrad.protos.wire import parse
from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account, CallSlots, Transit
from lumigrad.server.core.call import Patience
from lumigrad.server.core.config import MIB, Config, ConfigError
from lumigrad.server.core.errors import (
    DEVICE_LOST,
    HANG,
    OUT_OF_MEMORY,
    BusyError,
    CancelledError,
    DeviceMemoryError,
    StoppingError,
)
from lumigrad.server.core.limits import Limits
from lumigrad.server.core.link import History
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.capacity import default_capacity, store_limits
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import DeviceMemory
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.machine import Machine
from lumigrad.server.engines.runner import EngineRunner
from lumigrad.server.process.heap import Heap
from lumigrad.server.process.liveness import Emergency, Heartbeat, Watchdog, warm_up
from lumigrad.server.process.metrics_port import MetricsPort, show_setup, show_state
from lumigrad.server.rpc.authentication import authenticator_of
from lumigrad.server.rpc.certificates import Certificates
from lumigrad.server.rpc.distance import DistanceService
from lumigrad.server.rpc.handler import Surface
from lumigrad.server.rpc.health import MOST_CALLS, HealthGate
from lumigrad.server.rpc.render import RenderService
from lumigrad.server.rpc.request_check import RequestCheck
from lumigrad.server.rpc.scenes import SceneService
from lumigrad.server.rpc.threads import CallThreads
from lumigrad.server.rpc.tracing import tracer_of
from lumigrad.server.rpc.worker_info import WorkerService
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.storage.spool_writer import open_spool
from lumigrad.server.storage.tenants import Tenants
from lumigrad.server.training.service import TrainingService

# Calls that are receiving or sending while others wait for the device.
_CALLS_BESIDE_QUEUE = 32
# Threads for health checks, which must be answered when every call is taken.
_THREADS_BESIDE_CALLS = 8
# Calls that one connection may have at the least, health checks among them.
_STREAMS = 128
_HOUSEKEEPING_SECONDS = 1.0
# The time for a thread of calls to answer a probe by HTTP.
_PROBE_SECONDS = 1.0
# The time for the last bytes of finished calls to leave.
_FLUSH_SECONDS = 1.0
# The time for scenes that have not been written to the spool.
_SPOOL_SECONDS = 5.0
# The time for those who call in a loop to be refused.
_REFUSING_SECONDS = 0.25


class Worker:
    """Serves one device until it is told to stop."""

    def __init__(self, config: Config, history: History, on_look: Callable[[], None]) -> None:
        """Take the device and both ports; whatever is not to be had is a ConfigError.

        `history` is what the metrics tell of the workers before; `on_look` is called all the time while this one works.
        """
        self._config = config
        try:
            self._device = resolve(config.device)
        except ValueError as error:
            raise ConfigError(f"--{error}") from None
        self._metrics = Metrics()
        self._metrics.remember(history.restarts, history.last_exit)
        max_calls = config.queue_size + _CALLS_BESIDE_QUEUE
        # Before all other threads: where stacks are written down, they are those of the hundred newest.
        self._pool = CallThreads(max_calls + config.max_trainings + _THREADS_BESIDE_CALLS)
        slots = CallSlots(max_calls, has_tenants=config.has_tenants)
        patience = Patience(config.max_call_seconds, config.stall_seconds)
        self._tracer = tracer_of(config, str(self._device), self._metrics)
        self._lanes = Lanes(config.lane_mib * MIB, self._metrics, has_tenants=config.has_tenants)
        check = RequestCheck(Limits.of(config))
        self._surface = Surface(
            self._metrics,
            slots,
            patience,
            check,
            _trainings(config),
            authenticator_of(config),
            self._tracer,
            self._lanes.of,
        )
        self._machine = _machine(config, self._device)
        self._spool = open_spool(config, history, self._metrics)
        self._tenants = Tenants(self._machine, config, self._metrics, self._spool)
        self._health = health.HealthServicer()
        self._health_gate = HealthGate()
        self._is_serving = False
        executor = self._machine.executor
        self._emergency = Emergency(self._surface, executor, self._tell_health)
        executor.on_lost = lambda error: self._emergency.end(DEVICE_LOST, "the device is lost", error)
        executor.on_views = self._metrics.batch_views.observe
        self._machine.memory.on_shortage = self._metrics.shortage
        self._machine.memory.on_leak = lambda why: self._emergency.end(OUT_OF_MEMORY, why)
        self._heartbeat = Heartbeat(executor, self._probe, self._tell_health)
        self._watchdog = Watchdog(executor, config.hang_seconds, lambda why: self._emergency.end(HANG, why), on_look)
        self._server = self._make_server(max(_STREAMS, max_calls + config.max_trainings))
        self.port = self._bind()
        show_setup(self._metrics, config, self._machine, max_calls, self._pool)
        show_state(
            self._metrics, self._machine, self._tenants, self._lanes, self._surface, self._spool,
            self._pool, lambda: self._is_serving,
        )  # fmt: skip
        self._metrics_port = MetricsPort(config, self._metrics.registry, self._is_healthy)
        self.metrics_port = self._metrics_port.port

    def start(self) -> None:
        """Prove the device with a small render, then serve."""
        self._watchdog.start()
        warm_up(self._machine)
        self._server.start()
        self._tell_health(True)
        threading.Thread(target=self._keep_house, name="housekeeping", daemon=True).start()
        described = describe(self._device)
        if self._config.device == "auto" and self._device.type == "cpu":
            logs.event("no usable CUDA device: rendering on the CPU", logging.WARNING, why=cuda_lack())
        limits = store_limits(self._config, self._machine.memory.capacity_bytes)
        if limits.is_cut:
            logs.event(
                "scenes and trainings may take less than --scene-mib and --training-mib say: half of the device's "
                "memory is left to calls; lower these options, or raise --device-memory-mib",
                logging.WARNING,
                scene_mib=limits.scene_bytes // MIB,
                training_mib=limits.training_bytes // MIB,
                tenant_training_mib=limits.tenant_training_bytes // MIB,
            )
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
        """Say NOT_SERVING, let callers notice, then let the calls in progress end; refuses calls for ever after.

        The process is to end then. gRPC's own way to stop would cancel the calls that arrive at that moment, and nobody
        may repeat those; the end of the process tells their callers that they may.
        """
        config = self._config
        self._health.enter_graceful_shutdown()
        self._is_serving = False
        logs.event("draining", calls=self._surface.in_progress)
        time.sleep(config.lame_duck_seconds)
        self._surface.close()
        is_idle = self._surface.wait_idle(config.drain_seconds)
        logs.event("stopped" if is_idle else "stopped with calls in progress", calls=self._surface.in_progress)
        # Whoever has just been served may be calling again: let them hear that they may do so elsewhere.
        time.sleep(_REFUSING_SECONDS)
        self._surface.end_all()
        self._machine.executor.close()
        # Replies already written may still be on their way.
        self._surface.wait_sent(_FLUSH_SECONDS)
        self._tracer.close()
        if self._spool is not None and not self._spool.flush(_SPOOL_SECONDS):
            logs.event("stopped before all was in the spool", logging.WARNING, missing=self._spool.depth)
        # While the kernels' library is still there to take its own back.
        self._tenants.clear()

    def _make_server(self, max_streams: int) -> grpc.Server:
        options = (
            # Without this a second worker would bind the same port and take half of the calls.
            ("grpc.so_reuseport", 0),
            # Notice callers whose machine has gone: by the network's acknowledgements, and by their own.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.ping_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # Connections that say nothing hold descriptors.
            ("grpc.server_handshake_timeout_ms", 10_000),
            # No compressed requests: a few KiB of them could unfold to anything. 1 stands for "as it is".
            ("grpc.compression_enabled_algorithms_bitset", 1),
            # gRPC's own defaults, which are promised here: no call brings more than this in metadata.
            ("grpc.max_metadata_size", 8 << 10),
            ("grpc.absolute_max_metadata_size", 16 << 10),
            # One connection may have as many calls as there are slots; more wait on their caller's side. gRPC counts
            # those that were reset until Python has seen them, and refuses more of that connection at little cost, so
            # that resets do not fill the queue in which the calls of all connections wait for Python.
            ("grpc.max_concurrent_streams", max_streams),
        )
        server = grpc.server(
            self._pool,
            interceptors=(self._health_gate,),
            options=options,
            # Of all connections together, health checks among them; more are refused.
            maximum_concurrent_rpcs=self._pool.count + MOST_CALLS,
        )
        servicers = {
            RENDER_SERVICE: RenderService(self._tenants),
            DISTANCE_SERVICE: DistanceService(self._tenants),
            SCENE_SERVICE: SceneService(self._tenants),
            TRAINING_SERVICE: TrainingService(self._tenants),
            WORKER_SERVICE: WorkerService(
                self._tenants, self._lanes, lambda: self.metrics_port, metrics_tls=self._config.metrics_tls
            ),
        }
        for name, servicer in servicers.items():
            server.add_generic_rpc_handlers((method_handlers(name, self._surface.wrap(name, servicer), early=True),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._config.reflection:
            server.add_generic_rpc_handlers((_reflection(self._surface),))
        return server

    def _bind(self) -> int:
        address = f"{self._config.url_host}:{self._config.port}"
        try:
            if self._config.tls_cert:
                return int(self._server.add_secure_port(address, Certificates(self._config).credentials()))
            return int(self._server.add_insecure_port(address))
        except RuntimeError:
            what = f"--port: cannot listen on {address}; is another process using it? --port 0 takes a free one"
            raise ConfigError(what) from None

    def _probe(self) -> None:
        try:
            warm_up(self._machine)
        except (BusyError, CancelledError, DeviceMemoryError, StoppingError):
            # Says nothing against the device: there was no room, or no time left.
            raise
        except Exception as error:
            self._emergency.end(DEVICE_LOST, "the device failed a trial", error)
            raise

    def _is_healthy(self) -> bool:
        """Whether calls are served, and a thread is free to answer one."""
        return self._is_serving and self._pool.answers(_PROBE_SECONDS)

    def _tell_health(self, works: bool) -> None:
        self._is_serving = works
        status = health_pb2.HealthCheckResponse
        for name in ("", *SERVICE_NAMES):
            self._health.set(name, status.SERVING if works else status.NOT_SERVING)

    def _keep_house(self) -> None:
        heap = Heap()
        while True:
            time.sleep(_HOUSEKEEPING_SECONDS)
            self._tenants.expire()
            self._surface.end_overdue()
            self._health_gate.end_silent()
            self._heartbeat.beat()
            self._metrics_port.refresh()
            heap.tidy()


def _trainings(config: Config) -> Account:
    option, share = "--max-trainings", config.share_of(config.max_trainings)
    return Account("open trainings", config.max_trainings, option, share=share, share_option=option)


def _machine(config: Config, chosen: torch.device) -> Machine:
    transfer = Transfer(chosen)
    payloads = Account(
        "bytes of payloads in progress",
        config.transit_mib * MIB,
        "--transit-mib",
        share=config.transit_share_mib * MIB,
        share_option="--tenant-transit-mib",
    )
    transit = Transit(payloads, transfer.allocate)
    capacity = config.device_memory_mib * MIB or default_capacity(chosen)
    memory = DeviceMemory(chosen, capacity, transit if chosen.type == "cpu" else None)
    return Machine(
        limits=Limits.of(config),
        memory=memory,
        transfer=transfer,
        transit=transit,
        executor=DeviceExecutor(
            chosen,
            memory,
            config.queue_size,
            has_tenants=config.has_tenants,
            batch_wait_seconds=config.batch_wait_ms / 1e3,
        ),
        runner=EngineRunner(transfer),
    )


def _reflection(surface: Surface) -> grpc.GenericRpcHandler:
    """GRPC's reflection as a call like every other, with its token, its place and its limits of time."""
    names = (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    behavior = surface.wrap_stream(
        "ServerReflection.ServerReflectionInfo",
        reflection.ReflectionServicer(names).ServerReflectionInfo,
        lambda raw: parse(reflection_pb2.ServerReflectionRequest, raw),
    )
    write = reflection_pb2.ServerReflectionResponse.SerializeToString
    handlers = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(behavior, None, write)}
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, handlers)
