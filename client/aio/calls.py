"""Awaitable calls: each runs in a thread and is cancelled on the worker when its task is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from lumigrad.client.base import forks
from lumigrad.client.errors import LumigradError
from lumigrad.client.transport.call import Cancellation

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Protocol):
    """What has blocking verbs that another thread can cancel."""

    def _cancelled_by(self: T, cancellation: Cancellation | None) -> T:
        """The same thing, whose calls `cancellation` ends."""


B = TypeVar("B", bound=Blocking)


class Calls:
    """Runs so many at a time; the others wait for their turn, in the order in which they came, without a thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._is_closed = False
        self._under_way: set[Cancellation] = set()
        self._threads = ThreadPoolExecutor(limit, "lumigrad call")
        forks.follow(self)

    def after_fork(self, is_sound: bool) -> None:
        """Begins with other threads, and with nothing under way."""
        self._under_way.clear()
        self._threads = ThreadPoolExecutor(self.limit, "lumigrad call")

    async def run(
        self, verb: Callable[Concatenate[B, P], T], blocking: B, /, *arguments: P.args, **options: P.kwargs
    ) -> T:
        """What a verb of something returns or raises.

        Who stops waiting, by a time-out or cancelled, is free at once; the call ends shortly after: what it has under
        way at the worker is cancelled.
        """
        if self._is_closed:
            raise LumigradError("this client is closed; make a new one")
        cancellation = Cancellation()
        bound = blocking._cancelled_by(cancellation)
        # In the context of whoever awaits it: the program's span, its locale and so on.
        future = self._threads.submit(copy_context().run, partial(verb, bound, *arguments, **options))
        self._under_way.add(cancellation)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise
        finally:
            self._under_way.discard(cancellation)

    async def close(self, finish: Callable[[], None]) -> None:
        """Cancels all calls, and when none goes on any more calls `finish`."""
        self._is_closed = True
        for cancellation in self._under_way.copy():
            cancellation.cancel()

        def wait() -> None:
            self._threads.shutdown()
            finish()

        await asyncio.to_thread(wait)


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
        while found := await self._calls.run(lambda _: tuple(islice(results, 1)), self._blocking):
            yield wrap(found[0], self._calls)

    return stream
