"""One request of a long call, as the layers below see it: a call of its own, whose time and memory end with it."""

from __future__ import annotations

from collections.abc import Callable

from lumigrad.server.call import Call
from lumigrad.server.timings import StageTimes


class Part(Call):
    """What is done for one message of a stream."""

    def __init__(self, whole: Call, operation: str) -> None:
        # Not the base's: everything that it would read from gRPC is the whole call's.
        self.__dict__.update(whole.__dict__)
        self.times = StageTimes()
        self.operation = operation
        self._whole = whole
        self._at_end: list[Callable[[], None]] = []
        self._has_ended = False

    def check(self) -> None:
        """Raise if nobody waits for the whole call any more."""
        self._whole.check()
        self.checked = self._whole.checked

    def on_end(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when this part ends, or the whole call; at once if it has."""
        if self._has_ended:
            callback()
        else:
            self._at_end.append(callback)

    def cancel(self, why: str) -> None:
        """End the whole call from this side."""
        self._whole.cancel(why)

    def end(self) -> None:
        """Let go of everything."""
        if not self._has_ended:
            self.tell_stages(self.engine, self.operation, self.times.milliseconds)
        self._has_ended = True
        while self._at_end:
            self._at_end.pop()()


class Parts:
    """The parts of one call that have not ended: they end with it, whichever way it goes."""

    def __init__(self, whole: Call) -> None:
        self._whole = whole
        self._open: set[Part] = set()
        whole.on_end(self.end)

    def begin(self, operation: str) -> Part:
        """A further part."""
        part = Part(self._whole, operation)
        self._open.add(part)
        return part

    def close(self, part: Part) -> None:
        """End one."""
        self._open.discard(part)
        part.end()

    def end(self) -> None:
        """End all of them."""
        for part in list(self._open):
            self.close(part)
