"""The OpenTelemetry span of one call of the client. Imported only if the program has set up tracing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

import grpc
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lumigrad.client.transport.addresses import split_target
from lumigrad.client.transport.tracing import Trace

_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("lumigrad.client", version("lumigrad"))


class Span(Trace):
    """A child of the program's current span, from its construction to `end`."""

    def __init__(self, method: str, facts: Callable[[], Mapping[str, str | int]] | None) -> None:
        """Begins the span of a call to `method`; `facts` returns its attributes, which get the prefix "lumigrad."."""
        self._scope = _tracer.start_as_current_span(
            method,
            kind=trace.SpanKind.CLIENT,
            attributes={"rpc.system.name": "grpc", "rpc.method": method},
            record_exception=False,
            set_status_on_exception=False,
        )
        self._span = self._scope.__enter__()
        if facts is not None and self._span.is_recording():
            self._span.set_attributes({f"lumigrad.{name}": value for name, value in facts().items()})
        self._calls = 0
        self._retries = 0
        self._sent_bytes = 0
        self._received_bytes = 0
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(self._span))
        self.metadata = tuple(carrier.items())

    def note_call(self, target: str) -> None:
        """Notes that an RPC starts; a call may make several, or repeat one."""
        if not self._calls:
            address, port = split_target(target)
            self._span.set_attributes({"server.address": address, **({} if port is None else {"server.port": port})})
        self._calls += 1

    def note_payload(self, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Notes the bytes sent and received."""
        self._sent_bytes += sent_bytes
        self._received_bytes += received_bytes

    def note_retry(self, pause_s: float) -> None:
        """Notes that a call will be repeated."""
        self._retries += 1
        self._event("retry", {"attempt": self._retries + 1, "pause_ms": round(1e3 * pause_s)})

    def note_repair(self, lost: str) -> None:
        """Notes that the client is about to restore something that the worker lost."""
        self._event("repair", {"lost": lost})

    def end(self, error: BaseException | None) -> None:
        """Ends the span; records only the kind of an error, because its text may quote the caller's data."""
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
        self._scope.__exit__(None, None, None)

    def _event(self, name: str, values: Mapping[str, str | int]) -> None:
        self._span.add_event(f"lumigrad.{name}", {f"lumigrad.{key}": value for key, value in values.items()})


def _code(error: BaseException) -> str:
    """Returns the status code of a failed RPC; empty if the error did not come from an RPC."""
    cause = error.__cause__
    return str(cause.code().name) if isinstance(cause, grpc.RpcError) and isinstance(cause, grpc.Call) else ""
