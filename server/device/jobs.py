"""Work for the device's thread, alone or in a batch with other calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch

from lumigrad.server.core.call import Call, Priority
from lumigrad.server.device.memory import Cost, DeviceMemory

T = TypeVar("T")


@dataclass(frozen=True)
class Joint(Generic[T]):
    """How work is done at one with other work that waits.

    Attributes:
        key: Equal of work that fits together.
        fill: The share that this part takes of the most that is done at once.
        part: What `run` is to know of it.
        run: Does several parts at once; returns their results, in their order.
    """

    key: Hashable
    fill: float
    part: Any
    run: Callable[[Sequence[Any]], Sequence[T]]


class Job(Generic[T]):
    """Runs once, and is delivered once."""

    def __init__(self, work: Callable[[], T], call: Call | None, cost: Cost, joint: Joint[T] | None) -> None:
        """The worker's own jobs have no call; `joint` says how it is done with others, if it can be."""
        self.call = call
        self.cost = cost
        self.joint = joint
        self.future: Future[T] = Future()
        self.error: BaseException | None = None
        self.result: T | None = None
        self._work = work
        self._submitted = time.perf_counter()
        self._started = math.inf

    @property
    def tenant(self) -> str:
        """Whose it is; nobody's if it is the worker's own."""
        return "" if self.call is None else self.call.tenant

    @property
    def priority(self) -> Priority:
        """How urgent it is: the worker's own jobs are short, and somebody wants to know whether the device works."""
        return Priority.INTERACTIVE if self.call is None else self.call.priority

    @property
    def remaining(self) -> float:
        """Seconds until nobody waits for it any more."""
        return math.inf if self.call is None else self.call.remaining

    @property
    def held_seconds(self) -> float:
        """How long it has run without asking whether it is still wanted, as it does before each part of its work."""
        asked = self._started if self.call is None else max(self._started, self.call.checked)
        return time.monotonic() - asked

    def begin(self) -> bool:
        """Note that its turn has come; False if nobody waits for it any more."""
        self._started = time.monotonic()
        if self.call is None:
            return True
        self.call.times.add("queue", (time.perf_counter() - self._submitted) * 1e3)
        try:
            self.call.check()
        except Exception as error:
            self.error = error
        return self.error is None

    def work(self, memory: DeviceMemory) -> None:
        """Do the work, on the device's thread."""
        try:
            with torch.no_grad():
                self.result = memory.run(self._work, self.cost)
        except BaseException as error:
            self.error = error

    def fail(self, error: BaseException) -> None:
        """Let the waiting thread go on without a result."""
        self.error = error
        self.deliver()

    def deliver(self) -> None:
        """Let the waiting thread go on; apart from `work`, so that the executor's books are in order by then."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(cast(T, self.result))
