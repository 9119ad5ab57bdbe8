"""Verbs that block -> the same ones, to be awaited: each is written once, where it blocks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from lumigrad.client.aio.calls import Calls

P = ParamSpec("P")
# What has the blocking verbs.
B = TypeVar("B")
T = TypeVar("T")
U = TypeVar("U")


class Asynchronous(Generic[B]):
    """What awaits the verbs of something that blocks."""

    def __init__(self, blocking: B, calls: Calls) -> None:
        self._blocking = blocking
        self._calls = calls


def awaited(
    verb: Callable[Concatenate[B, P], T],
) -> Callable[Concatenate[Asynchronous[B], P], Coroutine[Any, Any, T]]:
    """The same verb, with its arguments, result and errors."""
    return awaited_as(lambda result, _: result, verb)


def awaited_as(
    wrap: Callable[[T, Calls], U], verb: Callable[Concatenate[B, P], T]
) -> Callable[Concatenate[Asynchronous[B], P], Coroutine[Any, Any, U]]:
    """The same verb; `wrap` makes its result one that has verbs to be awaited itself."""

    @wraps(verb)
    async def call(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> U:
        return wrap(await self._calls.run(verb, self._blocking, *arguments, **options), self._calls)

    return call
