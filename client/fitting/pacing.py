"""Measures the progress of a fit: in steps, or in seconds of a time budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Protocol

from lumigrad.client.base.counts import counted

# A time budget is spent in parts, and the pace is adapted after each. A part takes at most this share of the budget and
# of the schedules, and at most this many seconds.
_PART, _MOST_SECONDS = 0.02, 2.0
# The slowest pace that a training accepts.
_SLOWEST = 1e-6
# The default number of previews of a fit.
_PREVIEWS = 10


class Pacing(Protocol):
    """The progress of a fit.

    Attributes:
        total: value of `done` at the end of the fit.
        unit: the unit of `total` and `done`.
        bar: the format of a progress bar; None: the default format.
    """

    total: float
    unit: str
    bar: str | None

    def done(self, number: int) -> float:
        """Returns how much is done before step `number`."""

    def text(self, number: int) -> str:
        """Returns how much is done before step `number`, in words."""

    def is_over(self, number: int) -> bool:
        """Whether the fit ends before step `number`."""

    def parts(self, number: Callable[[], int]) -> Iterator[tuple[int, float]]:
        """Divides the steps up to the next preview into parts.

        Args:
            number: returns the number of the next step.

        Yields:
            The maximum number of steps of a part, and the pace of the schedules in that part.
        """


class BySteps:
    """A fit with a fixed number of steps."""

    unit = "step"
    bar: str | None = None

    def __init__(self, steps: int, every: int | None) -> None:
        """Sets the number of steps; `every` is the number of steps between previews, None: a tenth of all."""
        self.total: float = steps
        self._steps, self._every = steps, every or max(steps // _PREVIEWS, 1)

    def done(self, number: int) -> float:
        """Returns the number of completed steps."""
        return number

    def text(self, number: int) -> str:
        """See `Pacing`."""
        return f"{number:,} of {counted(self._steps, 'steps')}"

    def is_over(self, number: int) -> bool:
        """Whether all steps are done."""
        return number >= self._steps

    def parts(self, number: Callable[[], int]) -> Iterator[tuple[int, float]]:
        """See `Pacing`."""
        first = number()
        end = min(first + self._every - first % self._every, self._steps)
        while (at := number()) < end:
            yield end - at, 1.0


class BySeconds:
    """A fit with a time budget. Its schedules are those of `steps` steps, and advance with the elapsed time.

    It reserves as much time for the last preview as the previous one took, so it ends at most a part or a step late.
    """

    unit = "s"
    bar: str | None = "{l_bar}{bar}| {n:.0f}/{total:.0f} s{postfix}"

    def __init__(
        self,
        seconds: float,
        steps: int,
        every: int | None,
        used: float = 0.0,
        keep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Begins now.

        Args:
            seconds: the time budget.
            steps: the number of steps of the schedules.
            every: steps between previews; None: a preview after each tenth of the time.
            used: seconds that were used in an earlier process.
            keep: called with the elapsed seconds after each part; None: nothing is called.
            clock: returns the time, seconds.
        """
        self.total = seconds
        self._steps, self._every, self._keep, self._clock = steps, every, keep, clock
        self._began = clock() - used
        # The latest durations of a step and of a preview, seconds.
        self._step, self._preview = 0.0, 0.0
        self._paused: float | None = None

    def done(self, number: int) -> float:
        """Returns the elapsed seconds."""
        return self._clock() - self._began

    def text(self, number: int) -> str:
        """See `Pacing`."""
        return f"{counted(number, 'steps')}, {self.done(number):.0f} of {self.total:g} s"

    def is_over(self, number: int) -> bool:
        """Whether no time is left for half a step and the last preview."""
        return self.done(number) + self._preview + self._step / 2 >= self.total

    def parts(self, number: Callable[[], int]) -> Iterator[tuple[int, float]]:
        """See `Pacing`."""
        began = self.done(0)
        if self._paused is not None:
            self._preview = began - self._paused
        first = number()
        until = self.total if self._every else (began * _PREVIEWS // self.total + 1) * self.total / _PREVIEWS
        while not self.is_over(at := number()) and (used := self.done(at)) < until:
            pace = max(used / self.total * self._steps / max(at, 1), _SLOWEST)
            count = min(self._count(used), int(_PART * self._steps / pace) + 1, max(at, 1))
            if self._every:
                count = min(count, first + self._every - first % self._every - at)
            if not count:
                break
            yield count, pace
            if (made := number() - at) > 0:
                self._step = (self.done(at) - used) / made
            if self._keep is not None:
                self._keep(self.done(at))
        self._paused = self.done(0)

    def _count(self, used: float) -> int:
        """Returns the number of steps that a part has time for."""
        seconds = min(self.total * _PART, _MOST_SECONDS, self.total - self._preview - used)
        return max(int(seconds / self._step), 1) if self._step else 1
