"""Host work on an arriving scene, on its call's thread: on the device's thread, it would hold up all calls."""

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
# How often a call that waits for another build of its tenant checks whether it has ended.
_CHECK_SECONDS = 0.05


class Owner(Protocol):
    """Whoever needs the scene, such as a `Call`."""

    def check(self) -> None:
        """Raise if the scene is no longer needed."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the scene is stored or no longer needed."""


class Reading:
    """The owner of a scene that the worker itself reads, and always needs."""

    def __init__(self, ends: ExitStack) -> None:
        """Own the scene until `ends` is closed."""
        self._ends = ends

    def check(self) -> None:
        """Do nothing."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end."""
        self._ends.callback(callback)


class _Room:
    """The memory room of a build's kernels, until the end of a `with` block; a new room may replace it.

    Not an ExitStack: if the end of a room raises an error, an ExitStack would keep the failed work alive in a reference
    cycle.
    """

    def __init__(self) -> None:
        self._beside: Beside | None = None

    def begin(self, beside: Beside) -> None:
        """Begin a room, and end the previous one, which limited what was allocated so far."""
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
    """A build of one scene. A tenant has one build at a time, until the device takes it over; tenants take turns.

    The built scene counts as memory in use until then.
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
        """Do the work, which takes `nbytes` of host memory. Also raises what `Owner.check` raises.

        Raises DeviceMemoryError if there is not enough memory.
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
        """Let the work take `nbytes` more of host memory from now on; called on its thread.

        Raises DeviceMemoryError if there is not enough memory.
        """
        beside = self._runtime.memory.beside(Cost(bytes=nbytes))
        self._hold(beside.release)
        self._room.begin(beside)

    def taken_over(self, times: StageTimes, stage: str) -> None:
        """Note that the device has taken over the built scene, and add the time of the build to a stage."""
        times.add(stage, self._milliseconds)
        self.end()

    def end(self) -> None:
        """Release the memory and the tenant's turn; does nothing the second time. Callable on any thread."""
        with self._lock:
            self._has_ended = True
            held = self._held.pop_all()
        held.close()

    def _hold(self, release: Callable[[], None]) -> None:
        """Call `release` at the end, at once if the owner has ended meanwhile."""
        with self._lock:
            if not self._has_ended:
                self._held.callback(release)
                return
        release()
