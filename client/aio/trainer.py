"""`AsyncTrainer`: trainings for asyncio programs."""

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
    """The pending result of a step.

    Attributes:
        number: the number of the step.
    """

    def __init__(self, late: LateResult, calls: Calls) -> None:
        super().__init__(late, calls)
        self.number = late.number

    result = awaited(LateResult.result)

    @property
    def is_known(self) -> bool:
        """Whether `result` returns without waiting."""
        return self._blocking.is_known


class AsyncBatch(Asynchronous[Batch]):
    """The images of one step, which is completed by the gradients of a loss.

    Attributes:
        images: the requested images; also attributes of the batch: `batch.color` [C, H, W, K].
        views: the views that were rendered.
    """

    def __init__(self, batch: Batch, calls: Calls) -> None:
        super().__init__(batch, calls)
        self.images = batch.images
        self.views = batch.views

    def __getattr__(self, name: str) -> Array:
        return getattr(self.__dict__["images"], name)  # type: ignore[no-any-return]

    apply = awaited_as(AsyncLateResult, Batch.apply)


def _forwarded(name: str) -> Any:
    """Returns a property that reads an attribute of the blocking trainer, without waiting."""
    return property(lambda self: getattr(self._blocking, name))


class AsyncTrainer(Asynchronous[Trainer]):
    """The methods of `Trainer` as coroutines. For one task at a time; calls run one after the other.

    If the awaiting task is cancelled, the worker stops. The next call resumes the training there, and first repeats the
    steps that were in flight, except those that lack their gradients.

    Attributes:
        training_id: the id of the training on the worker.
        lease: the secret with which `AsyncClient.resume_trainer` resumes the training; keep it private.
        step_number: the number of the next step.
        snapshot_step: the step of the newest snapshot when the training was started or last resumed; None: none.
        resumed: how often the training was resumed after a lost connection, a lost worker or a cancelled task.
    """

    training_id: str = _forwarded("training_id")
    lease: str = _forwarded("lease")
    step_number: int = _forwarded("step_number")
    snapshot_step: int | None = _forwarded("snapshot_step")
    resumed: int = _forwarded("resumed")

    def __init__(self, trainer: Trainer) -> None:
        """Creates a trainer for `AsyncClient.trainer`."""
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
    cameras = awaited(Trainer.cameras)

    async def close(self, *, finish: bool = True) -> None:
        """Ends the training and cancels calls in progress.

        Args:
            finish: remove the training from the worker; unpublished changes are lost. False: the worker keeps it for a
                while.

        Example:
            async def main():
                async with AsyncClient(target) as client:
                    trainer = await client.trainer(scene, cameras, photographs)
                    await trainer.close(finish=False)

            asyncio.run(main())
        """
        await self._calls.close(lambda: self._blocking._cancelled_by(None).close(finish=finish))


P = ParamSpec("P")


class Beginning(Generic[B]):
    """Begins or resumes a training, once, when it is awaited or entered with `async with`."""

    def __init__(self, begin: Callable[[B], Trainer], blocking: B, calls: Calls, is_new: bool) -> None:
        """Stores the function that begins; a training that `is_new` is removed if the awaiting task is cancelled."""
        self._begin = begin
        self._blocking = blocking
        self._is_new = is_new
        self._calls = calls
        self._lock = threading.Lock()
        self._is_abandoned = False
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
                self._is_abandoned, made = True, self._made
            if made is not None:
                await asyncio.to_thread(made.close, finish=self._is_new)
            raise

    def _made_here(self, blocking: B) -> Trainer:
        """Begins the training, in a thread; ends it if the awaiting task was cancelled meanwhile."""
        trainer = self._begin(blocking)
        # From here on, each call of the trainer has its own cancellation.
        trainer._cancelled_by(None)
        with self._lock:
            self._made, is_abandoned = trainer, self._is_abandoned
        if is_abandoned:
            trainer.close(finish=self._is_new)
        return trainer


def begun(
    method: Callable[Concatenate[B, P], Trainer], *, is_new: bool
) -> Callable[Concatenate[Asynchronous[B], P], Beginning[B]]:
    """Converts a blocking method for use with `await` and `async with`; `is_new` as for `Beginning`."""

    @wraps(method)
    def begin(self: Asynchronous[B], /, *arguments: P.args, **options: P.kwargs) -> Beginning[B]:
        return Beginning(lambda blocking: method(blocking, *arguments, **options), self._blocking, self._calls, is_new)

    return begin
