"""Traces the client's calls if the program has set up OpenTelemetry, which this module does not import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, str | int]


class Trace:
    """Records events of a call. This base class, for programs without tracing, records nothing.

    `metadata` tells the worker which span the call belongs to.
    """

    metadata: tuple[tuple[str, str], ...] = ()

    def note_call(self, target: str) -> None:
        """Records that an RPC starts; a call may make several, or repeat one."""

    def note_payload(self, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Records the payload bytes sent and received."""

    def note_retry(self, pause_s: float) -> None:
        """Records that the call will be retried after a pause."""

    def note_repair(self, lost: str) -> None:
        """Records that the worker has lost a "scene", "mesh" or "context" that is about to be restored."""

    def end(self, error: BaseException | None) -> None:
        """Ends the trace with the outcome of the call; `error` is None on success."""


UNTRACED = Trace()


def begin(method: str, facts: Callable[[], Facts] | None = None) -> Trace:
    """Begins the trace of a call, named after the method that it mainly calls, e.g. "lumigrad.v1.RenderService/Render".

    `facts` returns attributes of the span, and is called only if a span is recorded.
    """
    # A program that has not imported OpenTelemetry, or is still importing it, cannot have set it up.
    api: Any = sys.modules.get("opentelemetry.trace")
    provider = getattr(api, "get_tracer_provider", None)
    if provider is None or isinstance(provider(), api.ProxyTracerProvider):
        return UNTRACED
    from lumigrad.client.transport.spans import Span

    return Span(method, facts)
