"""Health is open to everybody: no more places than it needs, so that it takes none from those who render."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health

# Watchers wait without a thread.
MOST_CALLS = 256
# Calls whose request has not come hold one.
_MOST_SILENT = 4
_SILENT_SECONDS = 5.0
_PREFIX = f"/{health.SERVICE_NAME}/"


class HealthGate(grpc.ServerInterceptor):  # type: ignore[misc]
    """Ends the oldest health calls when there are too many: the next check always gets through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the time of their arrival, the oldest first.
        self._calls: dict[grpc.ServicerContext, float] = {}
        self._silent: dict[grpc.ServicerContext, float] = {}

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Have health methods called before their request has come, which gRPC would wait for by itself."""
        handler = continuation(details)
        if handler is None or not details.method.startswith(_PREFIX):
            return handler
        if handler.response_streaming:
            made, behavior = grpc.stream_stream_rpc_method_handler, self._watched(handler.unary_stream)
        else:
            made, behavior = grpc.stream_unary_rpc_method_handler, self._checked(handler.unary_unary)
        return made(behavior, handler.request_deserializer, handler.response_serializer)

    def end_silent(self) -> None:
        """End the calls that have said nothing for too long."""
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

        # What grpc looks for: watchers must not keep threads.
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
        """Count a call in until it ends; returns those that must go for it."""
        with self._lock:
            self._calls[context] = self._silent[context] = time.monotonic()
            crowded = [*list(self._calls)[:-MOST_CALLS], *list(self._silent)[:-_MOST_SILENT]]
        if not context.add_callback(lambda: self._leave(context)):
            self._leave(context)
        return crowded

    def _leave(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._calls.pop(context, None)
            self._silent.pop(context, None)
