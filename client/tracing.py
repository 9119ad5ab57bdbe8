"""Spans of what a client does, if the program around it has set OpenTelemetry up; nothing of that is imported here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from lumigrad.client.spans import Verb

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
            from lumigrad.client.spans import verb

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
