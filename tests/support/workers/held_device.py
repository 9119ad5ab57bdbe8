"""An executor that a test blocks while jobs are queued, and calls that a test ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lumigrad.server.core.call import Priority
from lumigrad.server.core.errors import CancelledError, DeadlineError
from lumigrad.server.core.record import StageTimes
from lumigrad.server.core.turns import Turn, Turns
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import Cost


class StandInCall:
    """The part of a call that the executor uses."""

    def __init__(self, tenant: str = "", priority: Priority = Priority.NORMAL, remaining: float = 60.0) -> None:
        self.tenant = tenant
        self.priority = priority
        self.times = StageTimes()
        self.turn = Turn(Turns(), tenant)
        self.checked = 0.0
        self.device_seconds = 0.0
        self._deadline = time.monotonic() + remaining
        self._has_ended = False
        self._on_end: list[Callable[[], None]] = []

    @property
    def remaining(self) -> float:
        return self._deadline - time.monotonic()

    def check(self) -> None:
        self.checked = time.monotonic()
        if self.checked >= self._deadline:
            raise DeadlineError
        if self._has_ended:
            raise CancelledError

    def ended(self) -> Exception | None:
        return CancelledError() if self._has_ended else None

    def on_end(self, callback: Callable[[], None]) -> None:
        self._on_end.append(callback)

    def off_end(self, callback: Callable[[], None]) -> None:
        if callback in self._on_end:
            self._on_end.remove(callback)

    def cancel(self) -> None:
        self._has_ended = True
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()


class Asked:
    """Work for an executor, requested on a thread of its own."""

    def __init__(self, executor: DeviceExecutor, *arguments: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._executor = executor
        self._arguments = arguments
        self._thread = threading.Thread(target=self._run)
        depth = executor.queue.depth
        self._thread.start()
        until = time.monotonic() + 60
        while executor.queue.depth == depth and self._thread.is_alive():
            assert time.monotonic() < until
            time.sleep(0.001)

    def _run(self) -> None:
        try:
            self.result = self._executor.run(*self._arguments)
        except BaseException as error:
            self.error = error

    def wait(self) -> Asked:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self


@contextmanager
def held(executor: DeviceExecutor, sequence: str | None = None) -> Iterator[None]:
    """Keeps the device busy for the length of a `with` block, so that jobs queued meanwhile wait.

    The job that does so is of `sequence`.
    """
    go, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(300)

    thread = threading.Thread(target=executor.run, args=(hold, None, Cost(sequence=sequence)))
    thread.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        go.set()
        thread.join(60)
