"""The worker process: everything that serves, from the ports down to the device."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

import grpc
import torch

from lumigrad.kernels.device import cuda_lack, describe, resolve
from lumigrad.protos.service import (
    DISTANCE_SERVICE,
    FRAME_SERVICE,
    RENDER_SERVICE,
    SCENE_SERVICE,
    SENSORSIM_SERVICE,
    TRAINING_SERVICE,
    WORKER_SERVICE,
)
from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account, PayloadMemory, places
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
from lumigrad.server.core.notes import Notes
from lumigrad.server.core.progress import Patience
from lumigrad.server.device.capacity import default_capacity, store_limits
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import DeviceMemory
from lumigrad.server.device.transfer import Transfer, transfer_for
from lumigrad.server.engines.runner import EngineRunner, Machine
from lumigrad.server.process.liveness import Emergency, Heap, Heartbeat, Watchdog, warm_up
from lumigrad.server.process.metrics_port import MetricsPort, show_setup, show_state
from lumigrad.server.rpc.authentication import Authentication, authentication_of
from lumigrad.server.rpc.distance import DistanceService
from lumigrad.server.rpc.handler import CallHandler
from lumigrad.server.rpc.health import Health
from lumigrad.server.rpc.methods import Methods
from lumigrad.server.rpc.prepared_frames import PreparedFrames
from lumigrad.server.rpc.render import RenderService
from lumigrad.server.rpc.render_stream import RenderStreams
from lumigrad.server.rpc.request_check import RequestCheck
from lumigrad.server.rpc.scenes import SceneService
from lumigrad.server.rpc.server import CallThreads, bind, make_server
from lumigrad.server.rpc.status import unavailable_if_busy
from lumigrad.server.rpc.tracing import tracer_of
from lumigrad.server.rpc.worker_info import WorkerService
from lumigrad.server.sensorsim.catalog import Catalog
from lumigrad.server.sensorsim.scene_addresses import scene_addresses
from lumigrad.server.sensorsim.service import NAMES, FrameService, SensorsimService
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.storage.named import NamedScenes
from lumigrad.server.storage.spool_writer import open_spool
from lumigrad.server.storage.tenants import Tenants
from lumigrad.server.training.service import TrainingService

# Places for calls that receive or send while others wait for the device.
_CALLS_BESIDE_QUEUE = 32
# Threads for health checks, which must be answered even if all places of calls are taken.
_THREADS_BESIDE_CALLS = 8
_HOUSEKEEPING_SECONDS = 1.0
# The time within which a call thread must be free for an HTTP probe to succeed.
_PROBE_SECONDS = 1.0
# The time for sending the last bytes of finished calls.
_FLUSH_SECONDS = 1.0
# The time for writing remaining scenes to the spool.
_SPOOL_SECONDS = 5.0
# The time after which a call that got no place should retry.
_RETRY_SECONDS = 0.1
# The time for refusing callers that repeat calls in a loop.
_REFUSING_SECONDS = 0.25


class Worker:
    """Serves one device until it is stopped."""

    def __init__(self, config: Config, history: History, on_look: Callable[[], None]) -> None:
        """Acquire the device and both ports; raises ConfigError if any is not available.

        `history` is shown in the metrics; `on_look` is called regularly while this worker makes progress.
        """
        self._config = config
        self._device = _device(config)
        metrics = Metrics()
        metrics.remember(history.restarts, history.last_exit)
        max_calls, max_long = config.queue_size + _CALLS_BESIDE_QUEUE, config.max_trainings + config.max_streams
        # Call threads start before all others, because stack dumps show only the hundred newest threads.
        self._threads = CallThreads(max_calls + max_long + config.max_streams + _THREADS_BESIDE_CALLS)

        # The common path of all calls, and the exit of the process if the device fails.
        self._tracer = tracer_of(config, str(self._device), metrics)
        # All payloads of calls may be in pinned memory.
        transfer = transfer_for(self._device, config.transit_mib * MIB)
        authentication = authentication_of(config)
        self._lanes = Lanes(
            config.lane_mib * MIB, metrics, transfer.pinner, None if authentication is None else authentication.check
        )
        self._notes = Notes(
            metrics, None if self._tracer is None else self._tracer.record, logs.least_ms(config.log_level)
        )
        self._handler = _handler(
            config, self._notes, max_calls, authentication, self._lanes, is_traced=self._tracer is not None
        )
        self._health = Health()
        self._emergency = Emergency(self._handler, self._lanes, self._health.set, self._notes.write)

        # The device and its stores.
        self._machine = make_machine(config, transfer, metrics, self._emergency.end)
        self._emergency.executor = self._machine.executor
        self._spool = open_spool(config, history, metrics)
        catalog = Catalog.open(config.sensorsim) if config.sensorsim else None
        named = NamedScenes() if catalog is None else catalog.named
        named.at = scene_addresses(config)
        self._tenants = Tenants(self._machine, config, metrics, self._spool, named)

        self._trainings = TrainingService(self._tenants)

        # The checks of the device.
        executor = self._machine.executor
        self._is_loaded = False
        self.is_stopping = False
        self._heartbeat = Heartbeat(executor, self._probe, self._report)
        self._watchdog = Watchdog(executor, config.hang_seconds, lambda why: self._emergency.end(HANG, why), on_look)

        # The services, and the two ports.
        self._sensorsim: SensorsimService | None = None
        self._server = make_server(
            self._threads,
            self._services(catalog, metrics),
            max_calls + max_long,
        )
        self.port = bind(self._server, config)
        show_setup(metrics, config, self._machine, max_calls, self._threads)
        show_state(
            metrics, self._machine, self._tenants, self._lanes, self._handler, self._spool,
            self._threads, lambda: self._health.is_serving,
        )  # fmt: skip
        self._metrics_port = MetricsPort(config, metrics.registry, self._is_healthy)
        self.metrics_port = self._metrics_port.port

    def start(self) -> None:
        """Test the device with a small render, then answer calls; health stays NOT_SERVING until `load` ends."""
        self._watchdog.start()
        warm_up(self._machine)
        self._server.start()
        threading.Thread(target=self._keep_house, name="housekeeping", daemon=True).start()

    def write_notes(self) -> None:
        """Write the log lines of ended calls now; otherwise they are written within 0.1 s."""
        self._notes.write()

    def load(self) -> None:
        """Read the scenes that must be in memory before the first call, then report SERVING.

        Raises:
            ConfigError: A scene is invalid, or the scenes do not fit.
        """
        if self._sensorsim is not None and self._config.sensorsim_preload:
            self._sensorsim.preload()
        self._is_loaded = True
        self._report(True)
        described = describe(self._device)
        if self._config.device == "auto" and self._device.type == "cpu":
            logs.event("no usable CUDA device, using the CPU", logging.WARNING, why=cuda_lack())
        limits = store_limits(self._config, self._machine.memory.capacity_bytes)
        if limits.is_cut:
            logs.event(
                "the limits of --scene-mib and --training-mib are reduced, since half of the device's memory is "
                "reserved for calls; lower these options or raise --device-memory-mib",
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
        """Report NOT_SERVING for the lame-duck time, wait for the calls in progress, then refuse all calls.

        Trainings are suspended at once, because they would not end by themselves.

        The process must exit afterwards. gRPC's own shutdown would cancel calls that arrive at that moment, and clients
        do not repeat cancelled calls, but they do repeat calls that an exiting process has dropped.
        """
        config = self._config
        self.is_stopping = True
        self._health.stop()
        started = time.monotonic()
        logs.event("draining", calls=self._handler.in_progress)
        # Suspend on another thread, because a hanging disk must not keep the worker from stopping.
        suspending = threading.Thread(target=self._trainings.suspend, args=(config.drain_seconds,), daemon=True)
        suspending.start()
        suspending.join(config.drain_seconds)
        time.sleep(max(0.0, started + config.lame_duck_seconds - time.monotonic()))
        self._handler.close()
        self._streams.drain()
        left = started + config.lame_duck_seconds + config.drain_seconds - time.monotonic()
        is_idle = self._handler.wait_idle(max(0.0, left))
        self._notes.write()
        logs.event("stopped" if is_idle else "stopped with calls in progress", calls=self._handler.in_progress)
        # Clients whose calls just ended may call again; refuse them explicitly, so that they try another worker.
        time.sleep(_REFUSING_SECONDS)
        self._handler.end_all()
        self._machine.executor.close()
        # Replies already written may still be in transit.
        self._handler.wait_sent(_FLUSH_SECONDS)
        self._notes.close()
        if self._tracer is not None:
            self._tracer.close()
        if self._spool is not None and not self._spool.flush(_SPOOL_SECONDS):
            logs.event("stopped before everything was written to the spool", logging.WARNING, missing=self._spool.depth)
        # Tensors must be freed before the kernels' library is unloaded.
        self._tenants.clear()

    def _services(self, catalog: Catalog | None, metrics: Metrics) -> list[grpc.GenericRpcHandler]:
        """Return the handlers of all services; `catalog` has the scenes of driving simulators, if there are any."""
        config, tenants = self._config, self._tenants
        render = RenderService(tenants, self._lanes)
        prepared = partial(PreparedFrames, tenants, self._lanes, render.look_up, self._handler.places, self._notes)
        check = RequestCheck(Limits.of(config))
        self._streams = RenderStreams(self._handler, self._threads, check, render.frame, prepared)
        methods = Methods(self._handler, check)
        # gRPC asks the generic handlers in turn for the handler of each call, so the most used service comes first.
        handlers = [methods.serve(RENDER_SERVICE, render, own={"RenderStream": self._streams.method()})]
        servicers = {
            DISTANCE_SERVICE: DistanceService(tenants),
            SCENE_SERVICE: SceneService(tenants),
            TRAINING_SERVICE: self._trainings,
            WORKER_SERVICE: WorkerService(
                tenants, self._lanes, lambda: self.metrics_port, metrics_tls=config.metrics_tls
            ),
        }
        handlers += [methods.serve(name, servicer) for name, servicer in servicers.items()]
        if catalog is not None:
            self._sensorsim = SensorsimService(tenants, catalog, metrics)
            # Simulators retry only calls that were UNAVAILABLE.
            handlers += [
                methods.serve(SENSORSIM_SERVICE, self._sensorsim, names=NAMES, translate=unavailable_if_busy),
                methods.serve(FRAME_SERVICE, FrameService(tenants, catalog)),
            ]
        handlers.append(self._health.handler())
        return [*handlers, methods.reflection()] if config.reflection else handlers

    def _probe(self) -> None:
        try:
            warm_up(self._machine)
        except (BusyError, CancelledError, DeviceMemoryError, StoppingError):
            # Not a fault of the device, but too little memory or no time left.
            raise
        except Exception as error:
            self._emergency.end(DEVICE_LOST, "the device failed a test render", error)
            raise

    def _report(self, works: bool) -> None:
        """Report whether the device works, once everything is loaded."""
        self._health.set(works and self._is_loaded)

    def _is_healthy(self) -> bool:
        """Return whether calls are served and a thread is free to answer them."""
        return self._health.is_serving and self._threads.answers(_PROBE_SECONDS)

    def _keep_house(self) -> None:
        heap = Heap()
        tasks = (
            self._tenants.expire,
            self._handler.end_overdue,
            self._handler.check_tokens,
            self._streams.check_tokens,
            self._streams.end_overlong,
            self._health.end_silent,
            self._heartbeat.beat,
            self._metrics_port.refresh,
            heap.tidy,
            self._machine.transfer.trim,
        )
        while True:
            time.sleep(_HOUSEKEEPING_SECONDS)
            for task in tasks:
                try:
                    task()
                except Exception as error:
                    # One error must not end limits, expiry and the heartbeat.
                    logs.event("an error of housekeeping", logging.ERROR, task=task.__qualname__, error=error)


def _device(config: Config) -> torch.device:
    try:
        return resolve(config.device)
    except ValueError as error:
        raise ConfigError(f"--{error}") from None


def _handler(
    config: Config,
    notes: Notes,
    max_calls: int,
    authentication: Authentication | None,
    lanes: Lanes,
    *,
    is_traced: bool,
) -> CallHandler:
    return CallHandler(
        notes,
        places("places for calls in progress", max_calls, has_tenants=config.has_tenants, retry_seconds=_RETRY_SECONDS),
        Patience(config.max_call_seconds, config.stall_seconds),
        _long_calls(config, "open trainings", config.max_trainings, "--max-trainings"),
        authentication,
        lanes.of,
        streams=_long_calls(config, "open streams", config.max_streams, "--max-streams"),
        is_traced=is_traced,
    )


def _long_calls(config: Config, resource: str, count: int, option: str) -> Account:
    return Account(resource, count, option, share=config.share_of(count), share_option=option)


def make_machine(
    config: Config,
    transfer: Transfer,
    metrics: Metrics,
    end: Callable[[int, str, BaseException | None], None],
) -> Machine:
    """Create the parts that use the device; `end` is called with an exit code and the reason when the device fails."""
    device = transfer.device
    payloads = Account(
        "bytes of payloads in progress",
        config.transit_mib * MIB,
        "--transit-mib",
        share=config.transit_share_mib * MIB,
        share_option="--tenant-transit-mib",
    )
    payload_memory = PayloadMemory(payloads, transfer.allocate)
    memory = DeviceMemory(
        device,
        config.device_memory_mib * MIB or default_capacity(device),
        payload_memory if transfer.is_cpu else None,
        on_shortage=metrics.shortage,
        on_leak=lambda why: end(OUT_OF_MEMORY, why, None),
        transfer=transfer,
    )
    executor = DeviceExecutor(
        device,
        memory,
        config.queue_size,
        has_tenants=config.has_tenants,
        limit_seconds=config.max_device_seconds or config.hang_seconds,
        on_lost=lambda error: end(DEVICE_LOST, "the device is lost", error),
        on_views=metrics.batch_views.observe,
    )
    return Machine(
        limits=Limits.of(config),
        memory=memory,
        transfer=transfer,
        payload_memory=payload_memory,
        executor=executor,
        runner=EngineRunner(transfer),
        renderer=transfer.renderer(),
        queries=transfer.queries(),
        passes=transfer.passes(),
        jpegs=transfer.jpegs(),
    )
