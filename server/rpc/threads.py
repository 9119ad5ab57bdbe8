"""The threads that answer calls."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, TimeoutError
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from lumigrad.server.core import logs

P = ParamSpec("P")
T = TypeVar("T")
_Work = tuple[Future[Any], Callable[[], Any]]


class _Thread(threading.local):
    # What is to be done once the call is answered that this thread is at; None: it is at none.
    afterwards: deque[Callable[[], None]] | None = None


_thread = _Thread()


def afterwards(work: Callable[[], None]) -> None:
    """Have this thread do something once the call that it is at is answered; at once if it is at none."""
    if _thread.afterwards is None:
        work()
    else:
        _thread.afterwards.append(work)


class CallThreads(Executor):
    """A pool whose threads are all there from the start.

    One that failed to start another when a call comes would take gRPC's own thread along, and no call would be
    answered any more. Work goes to the thread that was the last to end some: its stack is in the processor's cache,
    and what it has allocated serves again. A ThreadPoolExecutor, which has them take turns, answered a third fewer
    small calls in a second.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        # Each idle thread waits for its own; the newest last.
        self._idle: list[SimpleQueue[_Work]] = []
        self._waiting: deque[_Work] = deque()
        everybody = threading.Barrier(count + 1)
        for number in range(count):
            threading.Thread(target=self._answer, args=(everybody,), name=f"call_{number}", daemon=True).start()
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
        work = future, partial(function, *arguments, **options)
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
            else:
                self._waiting.append(work)
        return future

    def _answer(self, everybody: threading.Barrier) -> None:
        mine: SimpleQueue[_Work] = SimpleQueue()
        _thread.afterwards = deque()
        everybody.wait()
        while True:
            with self._lock:
                if self._waiting:
                    mine.put(self._waiting.popleft())
                else:
                    self._idle.append(mine)
            _do(*mine.get())
            while _thread.afterwards:
                _write_down(_thread.afterwards.popleft())


def _do(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _write_down(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:
        logs.event("a call was not written down", logging.ERROR, error=error)
