"""The gRPC server: its threads, its options, its health service, and the port that it listens on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, TimeoutError
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from lumigrad.protos.service import SERVICE_NAMES
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.rpc.certificates import Certificates

P = ParamSpec("P")
T = TypeVar("T")
_Work = tuple[Future[Any], Callable[[], Any]]


class CallThreads(Executor):
    """A thread pool that starts all its threads when it is created.

    If a thread could not be started later, the exception would end gRPC's own thread, and no call would be answered
    any more. Work goes to the thread that became idle last, whose stack is in the processor's cache and whose heap has
    free memory. A ThreadPoolExecutor, which uses the longest idle one, handled a third fewer small calls per second.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        # The queues of idle threads; that of the thread that became idle last is the last.
        self._idle: list[SimpleQueue[_Work]] = []
        self._waiting: deque[_Work] = deque()
        everybody = threading.Barrier(count + 1)
        for number in range(count):
            threading.Thread(target=self._answer, args=(everybody,), name=f"call_{number}", daemon=True).start()
        everybody.wait()

    @property
    def busy(self) -> int:
        """The number of threads that are working."""
        return self.count - len(self._idle)

    def answers(self, seconds: float) -> bool:
        """Whether a thread becomes available within `seconds`."""
        probe = self.submit(lambda: None)
        try:
            probe.result(seconds)
        except TimeoutError:
            probe.cancel()
            return False
        return True

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> Future[T]:
        """Call a function on a thread, as soon as one is idle."""
        future: Future[T] = Future()
        work = future, partial(function, *arguments, **options)
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
            else:
                self._waiting.append(work)
        return future

    def _answer(self, everybody: threading.Barrier) -> None:
        mine: SimpleQueue[_Work] = SimpleQueue()
        everybody.wait()
        while True:
            with self._lock:
                if self._waiting:
                    mine.put(self._waiting.popleft())
                else:
                    self._idle.append(mine)
            _do(*mine.get())


def _do(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


# Calls of Watch hold no thread.
_MOST_HEALTH_CALLS = 256
# Calls whose request has not arrived hold one each.
_MOST_SILENT = 4
_SILENT_SECONDS = 5.0
_PREFIX = f"/{health.SERVICE_NAME}/"


class HealthLimiter(grpc.ServerInterceptor):  # type: ignore[misc]
    """Cancels the oldest health calls when there are too many, so that a new check is always answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Times of arrival, the oldest first.
        self._calls: dict[grpc.ServicerContext, float] = {}
        self._silent: dict[grpc.ServicerContext, float] = {}

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Make gRPC call health methods as streams, before their request has arrived."""
        handler = continuation(details)
        if handler is None or not details.method.startswith(_PREFIX):
            return handler
        if handler.response_streaming:
            made, behavior = grpc.stream_stream_rpc_method_handler, self._watched(handler.unary_stream)
        else:
            made, behavior = grpc.stream_unary_rpc_method_handler, self._checked(handler.unary_unary)
        return made(behavior, handler.request_deserializer, handler.response_serializer)

    def end_silent(self) -> None:
        """Cancel calls whose request has not arrived for too long."""
        oldest = time.monotonic() - _SILENT_SECONDS
        with self._lock:
            overdue = [context for context, started in self._silent.items() if started < oldest]
        for context in overdue:
            context.cancel()

    def _checked(self, behavior: Callable[..., Any]) -> Callable[..., Any]:
        return lambda requests, context: behavior(self._first(requests, context), context)

    def _watched(self, behavior: Callable[..., Any]) -> Callable[..., Any]:
        def watch(requests: Iterator[Any], context: grpc.ServicerContext, send_response_callback: Any) -> Any:
            return behavior(self._first(requests, context), context, send_response_callback)

        # Attributes that make grpc release the thread while Watch waits.
        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        watch.experimental_thread_pool = None  # type: ignore[attr-defined]
        return watch

    def _first(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        for crowded in self._enter(context):
            crowded.cancel()
        for request in requests:
            with self._lock:
                self._silent.pop(context, None)
            return request
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected one message, got none")

    def _enter(self, context: grpc.ServicerContext) -> list[grpc.ServicerContext]:
        """Count a call until it ends; returns the calls to cancel for it."""
        with self._lock:
            self._calls[context] = self._silent[context] = time.monotonic()
            crowded = [*list(self._calls)[:-_MOST_HEALTH_CALLS], *list(self._silent)[:-_MOST_SILENT]]
        if not context.add_callback(lambda: self._leave(context)):
            self._leave(context)
        return crowded

    def _leave(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._calls.pop(context, None)
            self._silent.pop(context, None)


class HealthStatus:
    """The status that the standard health service reports for this worker and its services."""

    def __init__(self) -> None:
        self.servicer = health.HealthServicer()
        self._is_stopped = False
        # The servicer would report SERVING.
        self.set(False)

    def set(self, is_serving: bool) -> None:
        """Report SERVING or NOT_SERVING from now on, for the worker and for each service."""
        self.is_serving = is_serving and not self._is_stopped
        status = health_pb2.HealthCheckResponse
        for name in ("", *SERVICE_NAMES):
            self.servicer.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    def stop(self) -> None:
        """Report NOT_SERVING from now on, regardless of later calls of `set`."""
        self._is_stopped = True
        self.is_serving = False
        self.servicer.enter_graceful_shutdown()


# The minimum number of concurrent calls of one connection, health checks included.
_STREAMS = 128


def make_server(
    threads: CallThreads,
    health_status: HealthStatus,
    health_limiter: HealthLimiter,
    handlers: Sequence[grpc.GenericRpcHandler],
    max_calls: int,
) -> grpc.Server:
    """Create a server of these services and of health; one connection may have `max_calls` concurrent calls."""
    options = (
        # Otherwise a second worker could bind the same port and would get half of the calls.
        ("grpc.so_reuseport", 0),
        # Detect dead peers, by TCP's acknowledgements and by HTTP/2 pings.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Silent connections hold descriptors.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # No compressed requests: a few KiB could expand to any size. Bit 0 is "identity".
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # gRPC's default, set explicitly: the limit on the metadata of a call.
        ("grpc.max_metadata_size", 8 << 10),
        ("grpc.absolute_max_metadata_size", 16 << 10),
        # One connection may have as many calls as there are slots; further calls wait in the client. gRPC counts reset
        # calls until Python has seen them and refuses further ones of that connection cheaply, so that resets cannot
        # fill the queue in which the calls of all connections wait for Python.
        ("grpc.max_concurrent_streams", max(_STREAMS, max_calls)),
    )
    server = grpc.server(
        threads,
        interceptors=(health_limiter,),
        options=options,
        # Over all connections, health checks included; further calls are refused.
        maximum_concurrent_rpcs=threads.count + _MOST_HEALTH_CALLS,
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    health_pb2_grpc.add_HealthServicer_to_server(health_status.servicer, server)
    return server


def bind(server: grpc.Server, config: Config) -> int:
    """Listen on the configured address, with TLS if configured; returns the port. ConfigError if the port is in use."""
    address = f"{config.url_host}:{config.port}"
    try:
        if config.tls_cert:
            return int(server.add_secure_port(address, Certificates(config).credentials()))
        return int(server.add_insecure_port(address))
    except RuntimeError:
        what = f"--port: cannot listen on {address}; is another process using it? --port 0 takes a free one"
        raise ConfigError(what) from None
