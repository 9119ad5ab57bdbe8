"""Blocking calls in threads of their own, for those who await them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from lumigrad.client import forks
from lumigrad.client.cancellation import Cancellation
from lumigrad.client.errors import LumigradError

P = ParamSpec("P")
T = TypeVar("T")


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

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """What `call` returns or raises.

        Who stops waiting, by a time-out or cancelled, is free at once; the call ends shortly after: what it has under
        way at the worker is cancelled.
        """
        if self._is_closed:
            raise LumigradError("this client is closed; make a new one")
        # The span, the locale and so on of whoever awaits it.
        context, cancellation = copy_context(), Cancellation()
        cancellation.enter(context)
        future = self._threads.submit(context.run, partial(call, *arguments, **options))
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
