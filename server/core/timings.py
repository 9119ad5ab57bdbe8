"""The time that one call spends in each stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from lumigrad.v1 import timings_pb2

_SECOND_NS = 1_000_000_000


class StageSpan(NamedTuple):
    """One interval that a call spent in a stage.

    Attributes:
        stage: Its name; kernel stages begin with "kernel.".
        started: Seconds by `time.perf_counter`.
        ended: Likewise.
    """

    stage: str
    started: float
    ended: float


class StageTimes:
    """Milliseconds by stage, in the order in which stages were first entered, and each interval."""

    def __init__(self) -> None:
        self._created = self._started = self._ended = time.perf_counter()
        # Converts the stages' monotonic clock to the time of day, which may jump.
        self._epoch_ns = time.time_ns() - int(self._created * _SECOND_NS)
        self._milliseconds: dict[str, float] = {}
        self._spans: list[StageSpan] = []

    def restart(self) -> None:
        """Measure the total from now on: the header has arrived."""
        self._started = time.perf_counter()

    @property
    def milliseconds(self) -> Mapping[str, float]:
        """The milliseconds by stage so far."""
        return self._milliseconds

    @property
    def total(self) -> float:
        """Milliseconds since the call, or its header, arrived."""
        return (time.perf_counter() - self._started) * 1e3

    def end(self) -> float:
        """Record the end of the call; returns its total milliseconds."""
        self._ended = time.perf_counter()
        return (self._ended - self._started) * 1e3

    @property
    def ended_ns(self) -> int:
        """When the call ended, nanoseconds since 1970."""
        return self.epoch_ns(self._ended)

    @property
    def created_ns(self) -> int:
        """When the call arrived, nanoseconds since 1970."""
        return self.epoch_ns(self._created)

    @property
    def spans(self) -> Sequence[StageSpan]:
        """The intervals so far, ordered by their ends."""
        return self._spans

    def epoch_ns(self, moment: float) -> int:
        """Convert a time of `time.perf_counter` to nanoseconds since 1970."""
        return self._epoch_ns + int(moment * _SECOND_NS)

    def add(self, stage: str, milliseconds: float) -> None:
        """Add an interval that was measured elsewhere and has just ended."""
        now = time.perf_counter()
        self._add(StageSpan(stage, now - milliseconds / 1e3, now))

    def add_kernel(self, milliseconds: Mapping[str, float]) -> None:
        """Add the stages of a kernel that has just ended.

        Only their durations are known: they are placed one after the other up to now, after the last interval.
        """
        now = time.perf_counter()
        length = sum(milliseconds.values()) / 1e3
        room = now - (self._spans[-1].ended if self._spans else self._created)
        scale = 1.0 if length <= room else room / length
        started = now - length * scale
        for stage, value in milliseconds.items():
            name, ended = f"kernel.{stage}", started + value / 1e3 * scale
            self._milliseconds[name] = self._milliseconds.get(name, 0.0) + value
            self._spans.append(StageSpan(name, started, ended))
            started = ended

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Measure the time spent in a `with` block."""
        return _Stage(self._add, name)

    def message(self) -> timings_pb2.Timings:
        """The timings as a reply carries them."""
        stages = [timings_pb2.Stage(name=name, milliseconds=value) for name, value in self._milliseconds.items()]
        return timings_pb2.Timings(stages=stages, total_milliseconds=self.total)

    def _add(self, span: StageSpan) -> None:
        milliseconds = (span.ended - span.started) * 1e3
        self._milliseconds[span.stage] = self._milliseconds.get(span.stage, 0.0) + milliseconds
        self._spans.append(span)


class _Stage:
    """Measures a `with` block; a generator would take as long as the shortest stages."""

    __slots__ = ("_add", "_stage", "_started")

    def __init__(self, add: Callable[[StageSpan], None], stage: str) -> None:
        self._add = add
        self._stage = stage

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._add(StageSpan(self._stage, self._started, time.perf_counter()))
