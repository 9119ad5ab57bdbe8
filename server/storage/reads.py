"""Reads of one tenant's scenes from disk, which belong to the worker, not to the calls that wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from lumigrad.server.core.accounts import PayloadMemory
from lumigrad.server.core.call import Allocate, Call

T = TypeVar("T")
# How often a waiting call checks whether it has ended.
_CHECK_SECONDS = 0.05


class _Read(Generic[T]):
    """A read that calls wait for."""

    def __init__(self, work: Callable[[Allocate], T], waiting: int = 0) -> None:
        self.work = work
        self.waiting = waiting
        self.has_begun = False
        self.is_done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self, allocate: Allocate) -> None:
        """Run the work, on the thread of `DiskReads`."""
        try:
            self._result = self.work(allocate)
        except BaseException as error:
            self._error = error
        self.is_done.set()

    def result(self) -> T:
        """Return the result, or raise the read's error."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class DiskReads:
    """Runs reads one after the other, on a thread that exists while there are reads.

    A read that has begun runs to its end and stores its scene, even if no call waits for it any more: otherwise a scene
    that takes longer to read than callers wait would never be read.
    """

    def __init__(self, memory: PayloadMemory, tenant: str) -> None:
        """Count the memory of reads as payloads of the tenant."""
        self._memory = memory
        self._tenant = tenant
        self._lock = threading.Lock()
        # Reads in the order in which they were requested.
        self._reads: dict[Hashable, _Read[Any]] = {}
        self._is_running = False

    def wait_for(self, key: Hashable, work: Callable[[Allocate], T], call: Call) -> T:
        """Schedule `work`, unless another call already waits for the same key, and wait for the result.

        Raises what the work raises, or what `Call.check` raises once the call is over.
        """
        with self._lock:
            read: _Read[T] = self._reads.setdefault(key, _Read(work))
            read.waiting += 1
            self._start()
        call.turn.give()
        try:
            while not read.is_done.wait(_CHECK_SECONDS):
                call.check()
        finally:
            with self._lock:
                read.waiting -= 1
                if not read.waiting and not read.has_begun:
                    self._reads.pop(key, None)
        return read.result()

    def begin(self, key: Hashable, work: Callable[[Allocate], object], most: int) -> bool:
        """Schedule `work` for later calls; returns False if `most` reads are waiting."""
        with self._lock:
            if key in self._reads:
                return True
            if len(self._reads) >= most:
                return False
            # `waiting` stays 1, so that the read is not removed before it begins.
            self._reads[key] = _Read(work, waiting=1)
            self._start()
            return True

    def _start(self) -> None:
        if not self._is_running:
            threading.Thread(target=self._run, name="reads", daemon=True).start()
            self._is_running = True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._reads:
                    self._is_running = False
                    return
                key, read = next(iter(self._reads.items()))
                read.has_begun = True
            with self._memory.lent(self._tenant) as allocate:
                read.run(allocate)
            with self._lock:
                del self._reads[key]
