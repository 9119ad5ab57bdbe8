"""A training that is about to begin: `await` gives its trainer, and `async with` ends it too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from lumigrad.client.aio.calls import Calls
from lumigrad.client.aio.trainer import AsyncTrainer
from lumigrad.client.aio.verbs import Asynchronous
from lumigrad.client.cancellation import shielded
from lumigrad.client.training.trainer import Trainer

P = ParamSpec("P")
B = TypeVar("B")


class Beginning:
    """Begins a training when it is awaited or entered; once."""

    def __init__(self, begin: Callable[[], Trainer], calls: Calls, is_new: bool) -> None:
        """`is_new`: nobody can want the training if nobody waits for it any more."""
        self._begin = begin
        self._is_new = is_new
        self._calls = calls
        self._lock = threading.Lock()
        self._is_left = False
        self._made: Trainer | None = None
        self._trainer: AsyncTrainer | None = None

    def __await__(self) -> Generator[Any, None, AsyncTrainer]:
        return self._awaited().__await__()

    async def __aenter__(self) -> AsyncTrainer:
        self._trainer = await self
        return self._trainer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._trainer is not None:
            await self._trainer.__aexit__(kind, error, traceback)

    async def _awaited(self) -> AsyncTrainer:
        try:
            return AsyncTrainer(await self._calls.run(self._made_here))
        except asyncio.CancelledError:
            with self._lock:
                self._is_left, made = True, self._made
            if made is not None:
                await asyncio.to_thread(made.close, finish=self._is_new)
            raise

    def _made_here(self) -> Trainer:
        """In a thread: nobody may wait any more when the training has begun, and then nobody else would end it."""
        trainer = self._begin()
        with self._lock:
            self._made, is_left = trainer, self._is_left
        if is_left:
            with shielded():
                trainer.close(finish=self._is_new)
        return trainer


def begun(
    verb: Callable[Concatenate[B, P], Trainer], *, is_new: bool
) -> Callable[Concatenate[Asynchronous[B], P], Beginning]:
    """The same verb, for `await` and for `async with`; `is_new` as for `Beginning`."""

    @wraps(verb)
    def begin(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> Beginning:
        return Beginning(lambda: verb(self._blocking, *arguments, **options), self._calls, is_new)

    return begin
