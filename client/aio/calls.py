"""Runs blocking methods in threads as coroutines; cancelling the task cancels the call on the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    """An object with blocking methods that another thread can cancel."""

    def _cancelled_by(self: T, cancellation: Cancellation | None) -> T:
        """Returns this object, or a copy, whose calls `cancellation` can cancel."""


B = TypeVar("B", bound=Blocking)


class Calls:
    """Runs at most `limit` calls at a time; further calls wait in a queue, in order, without occupying threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._is_closed = False
        self._in_progress: set[Cancellation] = set()
        self._threads = ThreadPoolExecutor(limit, "lumigrad call")
        forks.follow(self)

    def after_fork(self, is_sound: bool) -> None:
        """In a forked child, starts with new threads and no calls in progress."""
        self._in_progress.clear()
        self._threads = ThreadPoolExecutor(self.limit, "lumigrad call")

    async def run(
        self, method: Callable[Concatenate[B, P], T], blocking: B, /, *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Calls a method of `blocking` in a thread; returns its result or raises its error.

        If the task is cancelled or times out, this raises immediately; the thread's call is also cancelled, here and on
        the worker, and ends shortly afterwards.
        """
        if self._is_closed:
            raise LumigradError("this client is closed; make a new one")
        cancellation = Cancellation()
        bound = blocking._cancelled_by(cancellation)
        # The thread gets the context variables of the awaiting task, such as its trace span.
        future = self._threads.submit(copy_context().run, partial(method, bound, *arguments, **options))
        self._in_progress.add(cancellation)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise
        finally:
            self._in_progress.discard(cancellation)

    async def close(self, finish: Callable[[], None]) -> None:
        """Cancels all calls, waits until they have ended, and calls `finish`."""
        self._is_closed = True
        for cancellation in self._in_progress.copy():
            cancellation.cancel()

        def wait() -> None:
            self._threads.shutdown()
            finish()

        await asyncio.to_thread(wait)


U = TypeVar("U")


class Asynchronous(Generic[B]):
    """An object whose coroutines run the methods of a blocking one."""

    def __init__(self, blocking: B, calls: Calls) -> None:
        self._blocking = blocking
        self._calls = calls


def awaited(
    method: Callable[Concatenate[B, P], T],
) -> Callable[Concatenate[Asynchronous[B], P], Coroutine[Any, Any, T]]:
    """Converts a blocking method to a coroutine with the same arguments, result and errors."""
    return awaited_as(lambda result, _: result, method)


def awaited_as(
    wrap: Callable[[T, Calls], U], method: Callable[Concatenate[B, P], T]
) -> Callable[Concatenate[Asynchronous[B], P], Coroutine[Any, Any, U]]:
    """Converts a blocking method to a coroutine; `wrap` converts its result to an asynchronous object."""

    @wraps(method)
    async def call(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> U:
        return wrap(await self._calls.run(method, self._blocking, *arguments, **options), self._calls)

    return call


class Streamed(AsyncIterator[U], Generic[T, U]):
    """The items of a generator, each of which a thread computes.

    The generator ends as soon as a loop over this object is left. Python closes an asynchronous generator only some
    time later, when the next call may already run.
    """

    def __init__(self, items: Iterator[T], wrap: Callable[[T, Calls], U], calls: Calls, blocking: Blocking) -> None:
        self._items: Iterator[T] | None = items
        self._wrap, self._calls, self._blocking = wrap, calls, blocking

    async def __anext__(self) -> U:
        items = self._items
        if items is None:
            raise StopAsyncIteration
        # A future cannot raise StopIteration.
        try:
            found = await self._calls.run(lambda _: tuple(islice(items, 1)), self._blocking)
        except BaseException:
            self._items = None
            raise
        if not found:
            self._items = None
            raise StopAsyncIteration
        return self._wrap(found[0], self._calls)

    async def aclose(self) -> None:
        """Ends the generator."""
        self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        items, self._items = self._items, None
        if isinstance(items, Generator):
            # A generator that a thread still runs ends with the thread's call.
            with suppress(ValueError):
                items.close()


def streamed(
    method: Callable[Concatenate[B, P], Iterator[T]],
) -> Callable[Concatenate[Asynchronous[B], P], Streamed[T, T]]:
    """Converts a generator method to one that returns an asynchronous iterator."""
    return streamed_as(lambda result, _: result, method)


def streamed_as(
    wrap: Callable[[T, Calls], U], method: Callable[Concatenate[B, P], Iterator[T]]
) -> Callable[Concatenate[Asynchronous[B], P], Streamed[T, U]]:
    """Converts a generator method as `streamed` does; `wrap` converts its items to asynchronous objects."""

    @wraps(method)
    def stream(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> Streamed[T, U]:
        return Streamed(method(self._blocking, *arguments, **options), wrap, self._calls, self._blocking)

    return stream
