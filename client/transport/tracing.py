"""OpenTelemetry spans of a client's calls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, ParamSpec, TypeVar

import grpc
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lumigrad.client.transport.addresses import split_target

_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("lumigrad.client", version("lumigrad"))


class Verb:
    """What is noted of it while it goes on."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._calls = 0
        self._retries = 0
        self._sent_bytes = 0
        self._received_bytes = 0
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(span))
        self.metadata = tuple(carrier.items())

    def note_call(self, target: str) -> None:
        """Notes that a call is made, which may be one of several, or a repetition."""
        if not self._calls:
            address, port = split_target(target)
            self._span.set_attributes({"server.address": address, **({} if port is None else {"server.port": port})})
        self._calls += 1

    def note_payload(self, sent_bytes: int, received_bytes: int) -> None:
        """Notes how much went there and came back."""
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes

    def note_retry(self, pause_s: float) -> None:
        """Notes that a call will be repeated."""
        self._retries += 1
        self.event("retry", {"attempt": self._retries + 1, "pause_ms": round(1e3 * pause_s)})

    def event(self, name: str, values: Mapping[str, str | int]) -> None:
        """Notes that something happened just now."""
        self._span.add_event(f"lumigrad.{name}", {f"lumigrad.{key}": value for key, value in values.items()})

    def end(self, error: BaseException | None) -> None:
        """Notes how it went; of an error its kind, for its text may quote anything."""
        numbers = {
            "lumigrad.calls": self._calls,
            "lumigrad.retries": self._retries,
            "lumigrad.sent_bytes": self._sent_bytes,
            "lumigrad.received_bytes": self._received_bytes,
        }
        self._span.set_attributes(numbers)
        code = "OK" if error is None else _code(error)
        if code:
            self._span.set_attribute("rpc.response.status_code", code)
        if error is not None:
            self._span.set_attribute("error.type", code or type(error).__name__)
            self._span.set_status(trace.StatusCode.ERROR)


@contextmanager
def verb(method: str, facts: Callable[[], Mapping[str, str | int]] | None) -> Iterator[Verb]:
    """Begins a span below the program's own, and ends it."""
    with _tracer.start_as_current_span(
        method,
        kind=trace.SpanKind.CLIENT,
        attributes={"rpc.system.name": "grpc", "rpc.method": method},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        if facts is not None and span.is_recording():
            span.set_attributes({f"lumigrad.{name}": value for name, value in facts().items()})
        begun = Verb(span)
        try:
            yield begun
        except BaseException as error:
            begun.end(error)
            raise
        begun.end(None)


def _code(error: BaseException) -> str:
    """The status code of the call that failed; empty if it was not the worker, or the way to it, that said no."""
    cause = error.__cause__
    return str(cause.code().name) if isinstance(cause, grpc.RpcError) and isinstance(cause, grpc.Call) else ""


P = ParamSpec("P")
T = TypeVar("T")
Facts = Mapping[str, str | int]

# What is being done in this thread, if it leaves a trace.
_verb: ContextVar[Verb | None] = ContextVar("verb", default=None)


def traced(method: str, facts: Callable[..., Facts] | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a span of each call of a function.

    Args:
        method: what it mainly calls, e.g. "lumigrad.v1.RenderService/Render".
        facts: takes the function's arguments and returns attributes, whose names begin with "lumigrad." in the span.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            if not _is_on():
                return function(*arguments, **options)

            told = None if facts is None else functools.partial(facts, *arguments, **options)
            with verb(method, told) as begun:
                token = _verb.set(begun)
                try:
                    return function(*arguments, **options)
                finally:
                    _verb.reset(token)

        return call

    return decorate


def _is_on() -> bool:
    # A program that has not imported it cannot have set it up; one that is just importing it has not yet.
    api: Any = sys.modules.get("opentelemetry.trace")
    provider = getattr(api, "get_tracer_provider", None)
    return provider is not None and not isinstance(provider(), api.ProxyTracerProvider)


def metadata() -> tuple[tuple[str, str], ...]:
    """What a call tells the worker of the span that it belongs to."""
    current = _verb.get()
    return () if current is None else current.metadata


def note_call(target: str) -> None:
    """Notes that a call is made."""
    current = _verb.get()
    if current is not None:
        current.note_call(target)


def note_payload(*, sent_bytes: int = 0, received_bytes: int = 0) -> None:
    """Notes how much went there and came back."""
    current = _verb.get()
    if current is not None:
        current.note_payload(sent_bytes, received_bytes)


def note_retry(pause_s: float) -> None:
    """Notes that a call found no worker and will be repeated."""
    current = _verb.get()
    if current is not None:
        current.note_retry(pause_s)


def note_repair(lost: str) -> None:
    """Notes that the worker has lost something, a "scene", "mesh" or "context", which is about to be made good."""
    current = _verb.get()
    if current is not None:
        current.event("repair", {"lost": lost})
