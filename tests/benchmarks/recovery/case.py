"""A kind of fault, and the calls that follow it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from lumigrad.client import LumigradError

# Users of the client repeat failed calls after this pause.
_PAUSE_SECONDS = 0.01
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Incident:
    """A fault that can be repeated.

    Attributes:
        ready: waits until everything is as before any fault.
        strike: makes the fault happen, at once.
        call: makes a call, and raises an AssertionError if the reply is wrong.
        prepare: what must be done just before the fault.
        is_over: whether what the fault struck is back or replaced; calls go on until then.
    """

    ready: Callable[[], None]
    strike: Callable[[], None]
    call: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    is_over: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Case:
    """An incident with the workers that it needs.

    Attributes:
        fault: what happens, in words.
        stage: starts workers, proxies and clients, and ends them.
    """

    fault: str
    stage: Callable[[], AbstractContextManager[Incident]]


@dataclass(frozen=True)
class Recovery:
    """The outcome of one incident.

    Attributes:
        seconds: from the fault to the first good reply; or the longest that a call took, if calls go on meanwhile.
        failed: calls that failed before it, which the client does not repeat by itself.
    """

    seconds: float
    failed: int


def recover(incident: Incident) -> Recovery:
    """Makes an incident happen, and calls until a reply is good and the incident is over."""
    incident.ready()
    incident.call()
    incident.prepare()
    began = time.monotonic()
    incident.strike()
    return max(_calls(incident, began), key=lambda found: found.seconds)


def _calls(incident: Incident, began: float) -> Iterator[Recovery]:
    """Yields for each good reply the time since the one before it, or since the fault."""
    failed, until, is_over = 0, began + _PATIENCE_SECONDS, False
    while not is_over:
        assert time.monotonic() < until, "nothing comes back"
        is_over = incident.is_over()
        try:
            incident.call()
        except LumigradError:
            failed, is_over = failed + 1, False
            time.sleep(_PAUSE_SECONDS)
            continue
        now = time.monotonic()
        yield Recovery(now - began, failed)
        began = now
