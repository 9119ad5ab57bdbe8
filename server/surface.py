"""What every call passes through: its request id, its log line, its metrics, and the answer to its errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc

from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import Method, methods
from lumigrad.protos.wire import Frame
from lumigrad.server import logs
from lumigrad.server.answers import Answer, answer_to
from lumigrad.server.call import REQUEST_ID, Call
from lumigrad.server.errors import BusyError, StoppingError
from lumigrad.server.metrics import Metrics

_RETRY_SECONDS = 0.1
_REFUSALS = {"busy", "deadline", "device_memory", "invalid_argument", "stopping"}


class Surface:
    """Wraps servicers, whose methods take `(request, call)`, for grpc, which wants `(request, context)`."""

    def __init__(self, metrics: Metrics, max_calls: int, max_call_seconds: float) -> None:
        self._metrics = metrics
        self._max_calls = max_calls
        self._max_call_seconds = max_call_seconds
        self._calls: dict[Call, float] = {}
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def in_progress(self) -> int:
        """Calls that have not ended."""
        return len(self._calls)

    def close(self) -> None:
        """Refuse every new call.

        grpc's own way to stop would cancel those that are just arriving, and nobody may repeat a cancelled call.
        """
        with self._changed:
            self._is_closed = True

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no call is in progress; False if some still are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, seconds)

    def wrap(self, service_name: str, servicer: object) -> SimpleNamespace:
        """A servicer for `protos.service.method_handlers`."""
        short = service_name.rpartition(".")[2]
        return SimpleNamespace(
            **{
                method.name: self._wrapped(f"{short}.{method.name}", method, getattr(servicer, method.name))
                for method in methods(service_name)
            }
        )

    def _wrapped(self, name: str, method: Method, behavior: Callable[[Any, Call], Any]) -> Callable[..., Any]:
        def single(request: Any, context: grpc.ServicerContext) -> Any:
            with _Guard(self, name, context) as call:
                return behavior(_checked(request, method, call), call)

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with _Guard(self, name, context) as call:
                for reply in behavior(_checked(request, method, call), call):
                    if isinstance(reply, Frame):
                        call.bytes_sent += reply.data.nbytes
                    yield reply

        return stream if method.server_streaming else single

    def enter(self, call: Call) -> None:
        """Count a call in, unless too many are in progress."""
        with self._changed:
            if self._is_closed:
                raise StoppingError
            if len(self._calls) >= self._max_calls:
                raise BusyError(f"{len(self._calls)} calls are in progress, as many as may", _RETRY_SECONDS)
            self._calls[call] = time.monotonic()

    def leave(self, call: Call, answer: Answer | None, error: BaseException | None) -> None:
        """Count a call out, and write down how it went."""
        with self._changed:
            self._calls.pop(call, None)
            self._changed.notify_all()
        code = grpc.StatusCode.OK if answer is None else answer.code
        milliseconds = call.times.total
        self._metrics.calls.labels(call.method, code.name).inc()
        self._metrics.call_seconds.labels(call.method).observe(milliseconds / 1e3)
        self._metrics.bytes.labels(call.method, "received").inc(call.bytes_received)
        self._metrics.bytes.labels(call.method, "sent").inc(call.bytes_sent)
        self._metrics.stages(call.engine, call.operation, call.times.milliseconds)
        if answer is not None and answer.reason in _REFUSALS:
            self._metrics.rejections.labels(answer.reason).inc()
        is_ours = code == grpc.StatusCode.INTERNAL
        logs.event(
            "call",
            logging.ERROR if is_ours else logging.INFO,
            error=error if is_ours else None,
            request_id=call.request_id,
            method=call.method,
            code=code.name,
            ms=round(milliseconds, 3),
            received=call.bytes_received,
            sent=call.bytes_sent,
            **({"why": answer.text} if answer is not None else {}),
        )

    def end_overdue(self) -> None:
        """Cancel the calls that take longer than any may."""
        oldest = time.monotonic() - self._max_call_seconds
        with self._changed:
            overdue = [call for call, started in self._calls.items() if started < oldest]
        for call in overdue:
            call.cancel()


class _Guard:
    """Turns whatever a call raises into an answer."""

    def __init__(self, surface: Surface, method: str, context: grpc.ServicerContext) -> None:
        self._surface = surface
        self._context = context
        self._call = Call(method, context)

    def __enter__(self) -> Call:
        try:
            self._context.send_initial_metadata(((REQUEST_ID, self._call.request_id),))
            self._surface.enter(self._call)
            self._call.check()
        except Exception as error:
            self._fail(error)
        return self._call

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._surface.leave(self._call, None, None)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        answer = self._answer(error)
        self._surface.leave(self._call, answer, error)
        # A generator that is closed must not raise anything else.
        if not isinstance(error, GeneratorExit):
            self._context.set_trailing_metadata(answer.trailing_metadata)
            self._context.abort(answer.code, answer.text)

    def _answer(self, error: BaseException) -> Answer:
        """A call that ended while it was worked on is told so, whatever that made of the work."""
        try:
            self._call.check()
        except Exception as ended:
            return answer_to(ended, self._call.request_id)
        return answer_to(error, self._call.request_id)


def _checked(request: Any, method: Method, call: Call) -> Any:
    if method.client_streaming:
        return _checked_stream(request, call)
    if isinstance(request, ProtocolError):
        raise request
    return request


def _checked_stream(requests: Iterator[Any], call: Call) -> Iterator[Any]:
    for request in requests:
        if isinstance(request, ProtocolError):
            raise request
        if isinstance(request, Frame):
            call.bytes_received += request.data.nbytes
        yield request
