"""One request of a long call, as the layers below see it: a call of its own, whose time and memory end with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lumigrad.server.call import Call
from lumigrad.server.errors import CancelledError


class Part(Call):
    """What is done for one message of a stream."""

    def __init__(self, whole: Call, operation: str) -> None:
        super().__init__(whole.method, whole._context)
        self.request_id = whole.request_id
        self.tenant = whole.tenant
        self.priority = whole.priority
        self.tell_stages = whole.tell_stages
        self.engine = whole.engine
        self.operation = operation
        self._whole = whole
        # Of what follows: several threads work on one part.
        self._lock = threading.Lock()
        self._at_end: list[Callable[[], None]] = []
        self._has_ended = False

    def check(self) -> None:
        """Raise if nobody waits for the whole call any more."""
        self._whole.check()
        self.checked = self._whole.checked

    def on_end(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when this part ends, or the whole call; at once if it has."""
        with self._lock:
            if not self._has_ended:
                self._at_end.append(callback)
                return
        callback()

    def cancel(self, why: str) -> None:
        """End the whole call from this side."""
        self._whole.cancel(why)

    def end(self) -> None:
        """Let go of everything; no harm if it has ended."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self.tell_stages(self.engine, self.operation, self.times.milliseconds)
        while self._at_end:
            self._at_end.pop()()


class Parts:
    """The parts of one call that have not ended: they end with it, whichever way it goes."""

    def __init__(self, whole: Call) -> None:
        self._whole = whole
        self._lock = threading.Lock()
        self._open: set[Part] = set()
        self._has_ended = False
        whole.on_end(self.end)

    def begin(self, operation: str) -> Part:
        """A further part; CancelledError if the call has ended, for nobody would end it."""
        part = Part(self._whole, operation)
        with self._lock:
            if self._has_ended:
                raise CancelledError
            self._open.add(part)
        return part

    def close(self, part: Part) -> None:
        """End one."""
        with self._lock:
            self._open.discard(part)
        part.end()

    def end(self) -> None:
        """End all of them, and begin no more."""
        with self._lock:
            self._has_ended = True
            parts, self._open = self._open, set()
        for part in parts:
            part.end()
