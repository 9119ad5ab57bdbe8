"""Where the time of one call went, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from lumigrad.v1 import timings_pb2

_SECOND_NS = 1_000_000_000


class StageSpan(NamedTuple):
    """One stay in a stage.

    Attributes:
        stage: its name; kernels' begin with "kernel.".
        started: by `time.perf_counter`, seconds.
        ended: likewise.
    """

    stage: str
    started: float
    ended: float


class StageTimes:
    """Milliseconds by stage, in the order in which stages were first entered, and when they began and ended."""

    def __init__(self) -> None:
        self._created = self._started = self._ended = time.perf_counter()
        # What turns the clock of the stages into the time of day, which may jump meanwhile.
        self._epoch_ns = time.time_ns() - int(self._created * _SECOND_NS)
        self._milliseconds: dict[str, float] = {}
        self._spans: list[StageSpan] = []

    def restart(self) -> None:
        """Count from now on: the header has arrived."""
        self._started = time.perf_counter()

    @property
    def milliseconds(self) -> Mapping[str, float]:
        """What has been measured so far."""
        return self._milliseconds

    @property
    def total(self) -> float:
        """Milliseconds since the call, or its header, arrived."""
        return (time.perf_counter() - self._started) * 1e3

    def end(self) -> float:
        """Note that the call ends; returns its milliseconds in all."""
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
        """Each stay in a stage so far, by its end."""
        return self._spans

    def epoch_ns(self, moment: float) -> int:
        """A moment by `time.perf_counter` in nanoseconds since 1970."""
        return self._epoch_ns + int(moment * _SECOND_NS)

    def add(self, stage: str, milliseconds: float) -> None:
        """Count time that was measured elsewhere, and has just ended."""
        now = time.perf_counter()
        self._add(StageSpan(stage, now - milliseconds / 1e3, now))

    def add_kernel(self, milliseconds: Mapping[str, float]) -> None:
        """Count the stages of a kernel that has just ended.

        Only their lengths are known: they are laid one after the other up to now, and not before what came before them.
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
        """Count the time spent inside."""
        return _Stay(self._add, name)

    def message(self) -> timings_pb2.Timings:
        """What a reply carries."""
        stages = [timings_pb2.Stage(name=name, milliseconds=value) for name, value in self._milliseconds.items()]
        return timings_pb2.Timings(stages=stages, total_milliseconds=self.total)

    def _add(self, span: StageSpan) -> None:
        milliseconds = (span.ended - span.started) * 1e3
        self._milliseconds[span.stage] = self._milliseconds.get(span.stage, 0.0) + milliseconds
        self._spans.append(span)


class _Stay:
    """The time inside a `with` block; a generator would take as long as the shortest stages."""

    __slots__ = ("_add", "_stage", "_started")

    def __init__(self, add: Callable[[StageSpan], None], stage: str) -> None:
        self._add = add
        self._stage = stage

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._add(StageSpan(self._stage, self._started, time.perf_counter()))
