"""Work of the host on a scene that arrives, on its call's thread: the device's thread would hold up everybody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, TypeVar

from lumigrad.server.core.record import StageTimes
from lumigrad.server.core.turns import Turn
from lumigrad.server.device.memory import Beside, Cost
from lumigrad.server.storage.tenants import Runtime

T = TypeVar("T")
# How often a call that waits for another build of its tenant looks whether it has ended.
_CHECK_SECONDS = 0.05


class Owner(Protocol):
    """Whoever needs the scene, such as a `Call`."""

    def check(self) -> None:
        """Raise if the scene is not needed any more."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the scene is stored, or not needed any more."""


class Reading:
    """The owner of a scene that the worker reads for itself: it always needs it."""

    def __init__(self, ends: ExitStack) -> None:
        """Own what is read, until `ends` is closed."""
        self._ends = ends

    def check(self) -> None:
        """Never raises."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end."""
        self._ends.callback(callback)


class _Room:
    """The room of the kernels that work at a build, until the end of a `with` block: another may take its place.

    An ExitStack would keep what failed, in a cycle of references, where the end of a room raises an error of its own.
    """

    def __init__(self) -> None:
        self._beside: Beside | None = None

    def begin(self, beside: Beside) -> None:
        """Begin a room; the one before it has had what was taken so far."""
        self._end(None, None, None)
        beside.__enter__()
        self._beside = beside

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._end(kind, error, trace)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.__exit__(kind, error, trace)


class Build:
    """A build of one scene. A tenant has one at a time, until the device has taken it over; all tenants take turns.

    What was built counts as memory in use until then.
    """

    def __init__(self, runtime: Runtime, owner: Owner) -> None:
        self._runtime = runtime
        self._owner = owner
        self._lock = threading.Lock()
        self._held = ExitStack()
        self._room = _Room()
        self._has_ended = False
        self._milliseconds = 0.0

    def run(self, work: Callable[[], T], nbytes: int) -> T:
        """Do the work, which takes `nbytes` of the host's memory; raises what `Owner.check` raises, too.

        DeviceMemoryError: there is not so much memory.
        """
        runtime, check = self._runtime, self._owner.check
        while not runtime.building.acquire(timeout=_CHECK_SECONDS):
            check()
        self._hold(runtime.building.release)
        self._owner.on_end(self.end)
        turn = Turn(runtime.builds, runtime.tenant)
        try:
            turn.take(check)
            with self._room:
                self.add(nbytes)
                started = time.perf_counter()
                result = work()
            self._milliseconds = (time.perf_counter() - started) * 1e3
        except BaseException:
            self.end()
            raise
        finally:
            turn.give()
        return result

    def add(self, nbytes: int) -> None:
        """Let the work take `nbytes` more of the host's memory from here on, on its thread.

        DeviceMemoryError: there is not so much memory.
        """
        beside = self._runtime.memory.beside(Cost(bytes=nbytes))
        self._hold(beside.release)
        self._room.begin(beside)

    def taken_over(self, times: StageTimes, stage: str) -> None:
        """The device has taken over what was built; note the time of the work as part of a stage."""
        times.add(stage, self._milliseconds)
        self.end()

    def end(self) -> None:
        """Give back the memory and the tenant's turn; does nothing the second time. On any thread."""
        with self._lock:
            self._has_ended = True
            held = self._held.pop_all()
        held.close()

    def _hold(self, release: Callable[[], None]) -> None:
        """Have something given back at the end; at once if the owner has ended meanwhile."""
        with self._lock:
            if not self._has_ended:
                self._held.callback(release)
                return
        release()
