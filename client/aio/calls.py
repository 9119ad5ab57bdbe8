"""Runs blocking methods in threads as coroutines; cancelling the task cancels the call on the worker."""

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


def streamed(
    method: Callable[Concatenate[B, P], Iterator[T]],
) -> Callable[Concatenate[Asynchronous[B], P], AsyncGenerator[T, None]]:
    """Converts a generator method to an asynchronous generator."""
    return streamed_as(lambda result, _: result, method)


def streamed_as(
    wrap: Callable[[T, Calls], U], method: Callable[Concatenate[B, P], Iterator[T]]
) -> Callable[Concatenate[Asynchronous[B], P], AsyncGenerator[U, None]]:
    """Converts a generator method to an asynchronous generator; `wrap` converts its items to asynchronous objects."""

    @wraps(method)
    async def stream(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> AsyncGenerator[U, None]:
        results = method(self._blocking, *arguments, **options)
        # A future cannot raise StopIteration.
        while found := await self._calls.run(lambda _: tuple(islice(results, 1)), self._blocking):
            yield wrap(found[0], self._calls)

    return stream
