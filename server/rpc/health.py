"""The standard health service. It refuses no call: if there are too many, a new call ends the oldest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from lumigrad.protos.service import SERVICE_NAMES

# Not limited by threads, since calls of Watch hold none.
MOST_HEALTH_CALLS = 256
# Each call whose request has not arrived holds a thread.
_MOST_SILENT = 4
_SILENT_SECONDS = 5.0

_NAMES = frozenset(("", *SERVICE_NAMES))
_STATUS = health_pb2.HealthCheckResponse


class _Watcher:
    """A call of Watch, which sends each change of the status to its caller."""

    def __init__(self, read: Callable[[], Any], send: Callable[[Any], object]) -> None:
        self._read = read
        self._send = send
        # Held while sending, which waits for gRPC's thread. Calls end in that thread, so it must never wait for this
        # lock.
        self._lock = threading.Lock()
        self._sent: Any = None

    def tell(self) -> None:
        """Send the status if it differs from the last one; the caller may be gone."""
        with self._lock:
            status = self._read()
            if status != self._sent:
                self._sent = status
                self._send(_STATUS(status=status))


class Health:
    """Reports whether this worker serves, for itself and for each of its services."""

    def __init__(self) -> None:
        """Begin with NOT_SERVING."""
        self.is_serving = False
        self._is_stopped = False
        # Never held while sending, which waits for gRPC's thread, because calls take this lock in that thread when they
        # end. The servicer of grpc_health does hold its lock, and the server hung when one watcher left while another
        # came.
        self._lock = threading.Lock()
        self._watchers: dict[grpc.ServicerContext, _Watcher] = {}
        # Times of arrival, the oldest first.
        self._calls: dict[grpc.ServicerContext, float] = {}
        self._silent: dict[grpc.ServicerContext, float] = {}

    def set(self, is_serving: bool) -> None:
        """Report SERVING or NOT_SERVING from now on."""
        self.is_serving = is_serving and not self._is_stopped
        with self._lock:
            watchers = list(self._watchers.values())
        for watcher in watchers:
            watcher.tell()

    def stop(self) -> None:
        """Report NOT_SERVING from now on, regardless of later calls of `set`."""
        self._is_stopped = True
        self.set(False)

    def _status(self) -> Any:
        return _STATUS.SERVING if self.is_serving else _STATUS.NOT_SERVING

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the methods of the service. As request streams, gRPC calls them before their requests have arrived."""
        request, reply = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        check = grpc.stream_unary_rpc_method_handler(self._check, request, reply)
        watch = grpc.stream_stream_rpc_method_handler(self._watching(), request, reply)
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check, "Watch": watch})

    def end_silent(self) -> None:
        """Cancel calls whose request has not arrived for too long."""
        oldest = time.monotonic() - _SILENT_SECONDS
        with self._lock:
            overdue = [context for context, started in self._silent.items() if started < oldest]
        for context in overdue:
            context.cancel()

    def _check(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        if self._first(requests, context).service not in _NAMES:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return _STATUS()
        return _STATUS(status=self._status())

    def _watching(self) -> Callable[..., Any]:
        def watch(requests: Iterator[Any], context: grpc.ServicerContext, send_response_callback: Any) -> None:
            is_known = self._first(requests, context).service in _NAMES
            watcher = _Watcher(self._status if is_known else lambda: _STATUS.SERVICE_UNKNOWN, send_response_callback)
            with self._lock:
                # A call that has ended is no longer listed.
                if context in self._calls:
                    self._watchers[context] = watcher
            watcher.tell()

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
            crowded = [*list(self._calls)[:-MOST_HEALTH_CALLS], *list(self._silent)[:-_MOST_SILENT]]
        if not context.add_callback(lambda: self._leave(context)):
            self._leave(context)
        return crowded

    def _leave(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            for calls in (self._calls, self._silent, self._watchers):
                calls.pop(context, None)
