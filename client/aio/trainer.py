"""Awaitable trainings on the worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec

from lumigrad.client.aio.calls import Asynchronous, B, Calls, awaited, awaited_as, streamed, streamed_as
from lumigrad.client.base.arrays import Array
from lumigrad.client.training.trainer import Batch, LateResult, Trainer


class AsyncLateResult(Asynchronous[LateResult]):
    """What a step did, once the worker has told.

    Attributes:
        number: of the step.
    """

    def __init__(self, late: LateResult, calls: Calls) -> None:
        super().__init__(late, calls)
        self.number = late.number

    result = awaited(LateResult.result)

    @property
    def is_known(self) -> bool:
        """Whether `result` need not wait."""
        return self._blocking.is_known


class AsyncBatch(Asynchronous[Batch]):
    """The pictures of one step, which waits for the gradient of a loss.

    Attributes:
        images: what was asked for; also as attributes of the batch: `batch.color` [C, H, W, K].
        views: which were rendered.
    """

    def __init__(self, batch: Batch, calls: Calls) -> None:
        super().__init__(batch, calls)
        self.images = batch.images
        self.views = batch.views

    def __getattr__(self, name: str) -> Array:
        return getattr(self.__dict__["images"], name)  # type: ignore[no-any-return]

    apply = awaited_as(AsyncLateResult, Batch.apply)


def _shown(name: str) -> Any:
    """A property of the trainer, which is known without waiting."""
    return property(lambda self: getattr(self._blocking, name))


class AsyncTrainer(Asynchronous[Trainer]):
    """What `Trainer` has, to be awaited. For one task at a time; its calls follow each other.

    When a task that waits for it is cancelled, the worker stops; whatever is asked next goes on from there, and begins
    with the steps that were on their way, as far as they have all that they need.

    Attributes:
        training_id: names the training on the worker.
        lease: with it `AsyncClient.resume_trainer` takes the training up; whoever has it can.
        step_number: of the next step.
        snapshot_step: the step of the newest snapshot when the training was begun or taken up; None: there is none.
        resumed: how often the training was taken up again after a connection, a worker or a waiting task was lost.
    """

    training_id: str = _shown("training_id")
    lease: str = _shown("lease")
    step_number: int = _shown("step_number")
    snapshot_step: int | None = _shown("snapshot_step")
    resumed: int = _shown("resumed")

    def __init__(self, trainer: Trainer) -> None:
        """`AsyncClient.trainer` makes one."""
        super().__init__(trainer, Calls(1))

    async def __aenter__(self) -> AsyncTrainer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._calls.close(lambda: self._blocking._cancelled_by(None).__exit__(kind, error, traceback))

    steps = streamed(Trainer.steps)
    step = awaited(Trainer.step)
    batches = streamed_as(AsyncBatch, Trainer.batches)
    publish = awaited(Trainer.publish)
    scene = awaited(Trainer.scene)
    snapshot = awaited(Trainer.snapshot)
    views = awaited(Trainer.views)

    async def close(self, *, finish: bool = True) -> None:
        """Ends the training; what is under way is cancelled.

        Args:
            finish: let the worker forget it; what was not published is lost. False: it waits there for a while.
        """
        await self._calls.close(lambda: self._blocking._cancelled_by(None).close(finish=finish))


P = ParamSpec("P")


class Beginning(Generic[B]):
    """Begins a training when it is awaited or entered; once."""

    def __init__(self, begin: Callable[[B], Trainer], blocking: B, calls: Calls, is_new: bool) -> None:
        """`is_new`: nobody can want the training if nobody waits for it any more."""
        self._begin = begin
        self._blocking = blocking
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
            return AsyncTrainer(await self._calls.run(self._made_here, self._blocking))
        except asyncio.CancelledError:
            with self._lock:
                self._is_left, made = True, self._made
            if made is not None:
                await asyncio.to_thread(made.close, finish=self._is_new)
            raise

    def _made_here(self, blocking: B) -> Trainer:
        """In a thread: nobody may wait any more when the training has begun, and then nobody else would end it."""
        trainer = self._begin(blocking)
        # From here on each of its calls is cancelled by itself.
        trainer._cancelled_by(None)
        with self._lock:
            self._made, is_left = trainer, self._is_left
        if is_left:
            trainer.close(finish=self._is_new)
        return trainer


def begun(
    verb: Callable[Concatenate[B, P], Trainer], *, is_new: bool
) -> Callable[Concatenate[Asynchronous[B], P], Beginning[B]]:
    """The same verb, for `await` and for `async with`; `is_new` as for `Beginning`."""

    @wraps(verb)
    def begin(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> Beginning[B]:
        return Beginning(lambda blocking: verb(blocking, *arguments, **options), self._blocking, self._calls, is_new)

    return begin
