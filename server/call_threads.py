"""The threads that answer calls."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, TimeoutError
from typing import Any, ParamSpec, TypeVar

from lumigrad.server import logs

P = ParamSpec("P")
T = TypeVar("T")


def afterwards(work: Callable[[], None]) -> None:
    """Have this thread do something once the call that it is at is answered; at once if it is at none."""
    thread = threading.current_thread()
    if isinstance(thread, _CallThread):
        thread.afterwards.append(work)
    else:
        work()


class CallThreads(Executor):
    """A pool whose threads are all there from the start.

    One that failed to start another when a call comes would take gRPC's own thread along, and no call would be
    answered any more. Work goes to the thread that was the last to end some: its stack is in the processor's cache,
    and what it has allocated serves again.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._idle: list[_CallThread] = []
        self._waiting: deque[_Work] = deque()
        everybody = threading.Barrier(count + 1)
        for number in range(count):
            _CallThread(self, f"call_{number}", everybody).start()
        everybody.wait()

    @property
    def busy(self) -> int:
        """Threads that are at some work."""
        return self.count - len(self._idle)

    def answers(self, seconds: float) -> bool:
        """Whether a thread comes to some work in that time."""
        probe = self.submit(lambda: None)
        try:
            probe.result(seconds)
        except TimeoutError:
            probe.cancel()
            return False
        return True

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> Future[T]:
        """Have a thread call a function, as soon as one is idle."""
        future: Future[T] = Future()
        self._give((future, lambda: function(*arguments, **options)))
        return future

    def _give(self, work: _Work) -> None:
        with self._lock:
            if not self._idle:
                self._waiting.append(work)
                return
            thread = self._idle.pop()
        thread.wake(work)

    def next_for(self, thread: _CallThread) -> _Work | None:
        """What waits; if nothing does, the thread is idle from now on."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(thread)
        return None


_Work = tuple[Future[Any], Callable[[], Any]]


class _CallThread(threading.Thread):
    def __init__(self, pool: CallThreads, name: str, everybody: threading.Barrier) -> None:
        super().__init__(name=name, daemon=True)
        self._pool = pool
        self._everybody = everybody
        self._work: _Work | None = None
        self.afterwards: deque[Callable[[], None]] = deque()
        # Held while there is nothing to do.
        self._turn = threading.Lock()
        self._turn.acquire()

    def wake(self, work: _Work) -> None:
        """Let it do some work; it must be idle."""
        self._work = work
        self._turn.release()

    def run(self) -> None:
        """Work for ever."""
        self._everybody.wait()
        while True:
            work = self._pool.next_for(self)
            if work is None:
                self._turn.acquire()
                work, self._work = self._work, None
            assert work is not None
            _do(*work)
            self._clear_up()
            # The next one may be long in coming; do not keep the last call's tensors alive meanwhile.
            del work

    def _clear_up(self) -> None:
        while self.afterwards:
            try:
                self.afterwards.popleft()()
            except Exception as error:
                logs.event("a call was not written down", logging.ERROR, error=error)


def _do(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
