"""Camera paths: smooth ways through key frames, and the thread that plays them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.values.rotations import unit
from lumigrad.client.viewer.lens import Viewpoint


@dataclass(frozen=True)
class CameraPath:
    """A smooth way through viewpoints, evenly spaced in time.

    Positions, the points looked at, up directions and fields of view follow Catmull-Rom splines (E. Catmull and R.
    Rom, "A class of local interpolating splines", 1974), which pass through every key frame.

    Attributes:
        keys: two viewpoints or more.
        seconds: time from one viewpoint to the next.
        is_loop: whether it returns from the last viewpoint to the first.
    """

    keys: Sequence[Viewpoint]
    seconds: float
    is_loop: bool

    @property
    def duration_s(self) -> float:
        """The duration of the whole path."""
        return self.seconds * (len(self.keys) if self.is_loop else len(self.keys) - 1)

    def at(self, moment_s: float) -> Viewpoint:
        """Returns the viewpoint at a time; beyond `duration_s` the last one, or for a loop that of the next round."""
        place = moment_s / self.seconds
        if not self.is_loop:
            place = min(max(place, 0.0), len(self.keys) - 1.0)
        index = math.floor(place)
        share = place - index
        before, start, end, after = (self._row(index + offset) for offset in (-1, 0, 1, 2))
        # Hermite's form, with tangents of half the difference of the neighbours.
        square, cube = share**2, share**3
        row = (
            (2 * cube - 3 * square + 1) * start
            + (cube - 2 * square + share) * (end - before) / 2
            + (3 * square - 2 * cube) * end
            + (cube - square) * (after - start) / 2
        )
        return Viewpoint.looking(row[:3], row[3:6], unit("up", row[6:9]), float(row[9]), self.keys[0].aspect)

    def frames(self, frames_per_second: float) -> Iterator[Viewpoint]:
        """Yields the viewpoints of a video; a loop ends one frame before its first, so that it repeats smoothly."""
        count = round(self.duration_s * frames_per_second) + (0 if self.is_loop else 1)
        return (self.at(index / frames_per_second) for index in range(count))

    def _row(self, index: int) -> Float64:
        """Returns [10], position, point looked at, up direction and field of view of a key; extrapolated at ends."""
        last = len(self.keys) - 1
        if not self.is_loop and not 0 <= index <= last:
            end, inner = (0, 1) if index < 0 else (last, last - 1)
            return 2 * self._row(end) - self._row(inner)
        key = self.keys[index % len(self.keys)]
        return np.concatenate([key.position, key.look_at, key.up, [key.fov]])


class Player:
    """Calls a function regularly, in a thread of its own, until it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()

    @property
    def is_playing(self) -> bool:
        """Whether it is playing."""
        return not self._ended.is_set()

    def start(self, step: Callable[[float], bool], period_s: float, end: Callable[[], None]) -> None:
        """Starts playing, and stops what played before.

        Args:
            step: called with the seconds since the start; returns whether to go on.
            period_s: seconds from one call to the next.
            end: called after the last call.
        """
        self.stop()
        ended = threading.Event()
        with self._lock:
            self._ended = ended
        threading.Thread(target=self._run, args=(ended, step, period_s, end), daemon=True).start()

    def stop(self) -> None:
        """Stops. Does not wait."""
        with self._lock:
            self._ended.set()

    @staticmethod
    def _run(ended: threading.Event, step: Callable[[float], bool], period_s: float, end: Callable[[], None]) -> None:
        began, count = monotonic(), 0
        try:
            while not ended.is_set() and step(monotonic() - began):
                count = max(count + 1, math.floor((monotonic() - began) / period_s))
                ended.wait(max(began + count * period_s - monotonic(), 0.0))
        finally:
            ended.set()
            end()
