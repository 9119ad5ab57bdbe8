"""Some calls of a sequence at a time, and their results in its order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


async def in_order(
    call: Callable[[S], Coroutine[Any, Any, T]], items: Iterable[S] | AsyncIterable[S], limit: int
) -> AsyncGenerator[T, None]:
    """Yields what `call` makes of each item; so many are begun and not yet taken, at the most.

    An error is raised when its turn has come. What is under way then, or when nobody takes any more, is cancelled.
    """
    begun: deque[asyncio.Task[T]] = deque()
    try:
        async with aclosing(_each(items)) as each:
            async for item in each:
                begun.append(asyncio.create_task(call(item)))
                if len(begun) == limit:
                    yield await begun[0]
                    begun.popleft()
        while begun:
            yield await begun[0]
            begun.popleft()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


async def _each(items: Iterable[S] | AsyncIterable[S]) -> AsyncGenerator[S, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for entry in items:
            yield entry
