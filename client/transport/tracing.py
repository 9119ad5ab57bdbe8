"""Traces of a client's calls, if the program around it has set OpenTelemetry up; nothing of that is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, str | int]


class Trace:
    """What is noted of a call while it goes on. This one, of a program that does not trace, notes nothing.

    `metadata` tells the worker of the span that the call belongs to.
    """

    metadata: tuple[tuple[str, str], ...] = ()

    def note_call(self, target: str) -> None:
        """Notes that an RPC is made, which may be one of several, or a repetition."""

    def note_payload(self, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Notes how much went there and came back."""

    def note_retry(self, pause_s: float) -> None:
        """Notes that the call will be repeated, after a pause."""

    def note_repair(self, lost: str) -> None:
        """Notes that the worker has lost something, a "scene", "mesh" or "context", which is about to be made good."""

    def end(self, error: BaseException | None) -> None:
        """Notes how the call went."""


UNTRACED = Trace()


def begin(method: str, facts: Callable[[], Facts] | None = None) -> Trace:
    """Begins the trace of a call, named by the method that it mainly calls, e.g. "lumigrad.v1.RenderService/Render".

    `facts` returns attributes of the span, and is called only if there is one.
    """
    if not _is_on():
        return UNTRACED
    from lumigrad.client.transport.spans import Span

    return Span(method, facts)


def _is_on() -> bool:
    # A program that has not imported it cannot have set it up; one that is just importing it has not yet.
    api: Any = sys.modules.get("opentelemetry.trace")
    provider = getattr(api, "get_tracer_provider", None)
    return provider is not None and not isinstance(provider(), api.ProxyTracerProvider)
