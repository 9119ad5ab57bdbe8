"""Verbs that block -> the same ones, to be awaited: each is written once, where it blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from itertools import islice
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


def streamed(
    verb: Callable[Concatenate[B, P], Iterator[T]],
) -> Callable[Concatenate[Asynchronous[B], P], AsyncGenerator[T, None]]:
    """The same verb, whose results are awaited one by one."""
    return streamed_as(lambda result, _: result, verb)


def streamed_as(
    wrap: Callable[[T, Calls], U], verb: Callable[Concatenate[B, P], Iterator[T]]
) -> Callable[Concatenate[Asynchronous[B], P], AsyncGenerator[U, None]]:
    """The same verb; `wrap` makes its results ones that have verbs to be awaited themselves."""

    @wraps(verb)
    async def stream(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> AsyncGenerator[U, None]:
        results = verb(self._blocking, *arguments, **options)
        # A StopIteration does not pass through a future.
        while found := await self._calls.run(lambda: tuple(islice(results, 1))):
            yield wrap(found[0], self._calls)

    return stream
