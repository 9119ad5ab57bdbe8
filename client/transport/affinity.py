"""Which calls belong together: whoever balances calls over workers sends those of one name to one worker.

A balancer in between reads the name from the metadata "lumigrad-scene-id" and needs no knowledge of the messages. Names
only make calls find what they need where it is warm: a worker that lacks it says so, and the client sends it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

METADATA_KEY = "lumigrad-scene-id"

_current: ContextVar[str] = ContextVar("affinity", default="")


@contextmanager
def to(name: str) -> Iterator[None]:
    """Has the calls in a `with` block go where those of this name go; inside of another such block, of that one's."""
    token = _current.set(_current.get() or name)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str:
    """The name that calls go by; empty: none, any worker may answer them."""
    return _current.get()


def metadata() -> tuple[tuple[str, str], ...]:
    """What a call says of it."""
    name = _current.get()
    return ((METADATA_KEY, name),) if name else ()
