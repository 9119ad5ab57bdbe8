"""Record of a call for metrics, log, traces and replies: its stages, its sizes, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from lumigrad.v1 import timings_pb2

_SECOND_NS = 1_000_000_000


class StageSpan(NamedTuple):
    """Interval that a call spent in a stage.

    Attributes:
        stage: Name; kernel stages begin with "kernel.".
        started: Seconds by `time.perf_counter`.
        ended: Seconds by `time.perf_counter`.
    """

    stage: str
    started: float
    ended: float


class StageTimes:
    """Milliseconds by stage, in the order in which stages were first entered."""

    __slots__ = ("_started", "created", "ended", "milliseconds", "spans")

    def __init__(self, *, is_traced: bool = False) -> None:
        """Begin now; `is_traced` also keeps each interval."""
        # Times by `time.perf_counter`: when the call arrived and ended.
        self.created = self._started = self.ended = time.perf_counter()
        self.milliseconds: dict[str, float] = {}
        # Ordered by their ends; None if they are not kept.
        self.spans: list[StageSpan] | None = [] if is_traced else None

    def begin(self, moment: float) -> None:
        """Measure from the call's arrival at `moment`, by `time.perf_counter`."""
        self.created = self._started = moment

    def restart(self) -> None:
        """Measure the total from now on: the header has arrived."""
        self._started = time.perf_counter()

    @property
    def arrived(self) -> float:
        """The time by `time.perf_counter` at which the call, or its header, arrived."""
        return self._started

    @property
    def total(self) -> float:
        """Milliseconds since the call, or its header, arrived."""
        return (time.perf_counter() - self._started) * 1e3

    def end(self) -> float:
        """Record the end of the call; returns its total milliseconds."""
        self.ended = time.perf_counter()
        return (self.ended - self._started) * 1e3

    def add(self, stage: str, milliseconds: float) -> None:
        """Add an interval that was measured elsewhere and has just ended."""
        now = time.perf_counter()
        self._add(stage, now - milliseconds / 1e3, now)

    def add_kernel(self, milliseconds: Mapping[str, float]) -> None:
        """Add the stages of a kernel that has just ended.

        Only their durations are known, so their intervals are laid end to end, up to now and after the last interval.
        """
        for stage, value in milliseconds.items():
            name = f"kernel.{stage}"
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + value
        if self.spans is None:
            return
        now = time.perf_counter()
        length = sum(milliseconds.values()) / 1e3
        room = now - (self.spans[-1].ended if self.spans else self.created)
        scale = 1.0 if length <= room else room / length
        started = now - length * scale
        for stage, value in milliseconds.items():
            ended = started + value / 1e3 * scale
            self.spans.append(StageSpan(f"kernel.{stage}", started, ended))
            started = ended

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Measure the time spent in a `with` block."""
        return _Stage(self, name)

    def message(self) -> timings_pb2.Timings:
        """Return the timings as a reply carries them."""
        stages = [timings_pb2.Stage(name=name, milliseconds=value) for name, value in self.milliseconds.items()]
        return timings_pb2.Timings(stages=stages, total_milliseconds=self.total)

    def _add(self, stage: str, started: float, ended: float) -> None:
        self.milliseconds[stage] = self.milliseconds.get(stage, 0.0) + (ended - started) * 1e3
        if self.spans is not None:
            self.spans.append(StageSpan(stage, started, ended))


class _Stage:
    """Measures a `with` block. A class, because a generator would take as long as the shortest stages."""

    __slots__ = ("_stage", "_started", "_times")

    def __init__(self, times: StageTimes, stage: str) -> None:
        self._times = times
        self._stage = stage

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._times._add(self._stage, self._started, time.perf_counter())


@dataclass(slots=True, eq=False)
class CallRecord:
    """Facts about a call that has ended. Refers neither to the call nor to its tensors.

    Attributes:
        method: Service and method, such as "RenderService.Render".
        request_id: Names the call in log and traces.
        times: Times of the stages.
        tenant: The caller's tenant; empty without tenants.
        engine: The engine of the kernels' stages.
        operation: The operation of the kernels' stages, such as "forward".
        trace_parent: The caller's W3C trace context.
        facts: Sizes of the request, by name, for the traces.
        bytes_received: Bytes of payloads.
        bytes_sent: Bytes of payloads.
        steps: Number of steps of a training.
        nonfinite: Gradient values that are NaN or infinite.
        batch_views: The views of a batch that ran without Python, in the record of one of its calls.
        item_codes: Names of the status codes of a batch's items.
        code: Name of the status code.
        reason: Kind of an error, as a label of the metrics.
        why: The text of an error.
        error: Internal error, for its traceback.
        milliseconds: From the arrival of the header to the end.
        ended_at: Seconds since 1970.
    """

    method: str
    request_id: str
    times: StageTimes = field(default_factory=StageTimes)
    tenant: str = ""
    engine: str = ""
    operation: str = ""
    trace_parent: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, int] = field(default_factory=dict)
    bytes_received: int = 0
    bytes_sent: int = 0
    steps: int = 0
    nonfinite: int = 0
    batch_views: int = 0
    item_codes: Sequence[str] = ()
    code: str = "OK"
    reason: str = ""
    why: str = ""
    error: BaseException | None = None
    milliseconds: float = 0.0
    ended_at: float = 0.0
    # Milliseconds by stage that were already reported, for an earlier engine.
    _reported: Mapping[str, float] | None = None

    @property
    def stages(self) -> Mapping[str, float]:
        """Milliseconds by stage since the engine changed."""
        if not self._reported:
            return self.times.milliseconds
        now, before = self.times.milliseconds, self._reported
        return {name: ms - before.get(name, 0.0) for name, ms in list(now.items()) if ms != before.get(name)}

    def reported(self) -> None:
        """Note that the stages so far are in the metrics."""
        self._reported = dict(self.times.milliseconds)

    def end(self) -> None:
        """Note that the call ends now."""
        self.milliseconds = self.times.end()
        self.ended_at = time.time()

    def epoch_ns(self, moment: float) -> int:
        """Convert a time of `time.perf_counter` to nanoseconds since 1970, by the clock at the end of the call."""
        return int(self.ended_at * _SECOND_NS) + int((moment - self.times.ended) * _SECOND_NS)
