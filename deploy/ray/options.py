"""Options of a fleet of workers: their number, their resources, and when to add workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Ray determines a worker's address and device, and the fleet reads its metrics in plain text.
_NOT_YOURS = (
    *("--device", "--host", "--port", "--metrics-host", "--metrics-port", "--metrics-tls"),
    *("--no-supervisor", "--tokens-file"),
)


@dataclass(frozen=True)
class Options:
    """Settings of a fleet.

    Attributes:
        minimum: minimum number of workers.
        maximum: maximum number of workers; None: always `minimum`.
        gpus: Ray's GPUs for each worker: 1, or a fraction of one; 0: workers compute on a CPU.
        cpus: Ray's CPUs for each worker.
        resources: Ray's other resources for each worker, by name.
        serve: further options of `lumigrad serve`, e.g. ("--scene-mib", "8192"). Without --tls-cert calls travel in
            plain text between the nodes.
        queue_high: a worker is added if more calls than this wait for a worker's device, on average over the
            workers.
        busy_s: how long the average must stay above `queue_high`, seconds.
        idle_s: the newest worker is drained if no call has waited for this long, seconds.
        interval_s: time between two checks of the workers, seconds.
        drain_s: how long a worker that is removed may take to finish its calls, seconds.
        silence_s: the time without a report after which a worker is ended and restarted, seconds.
    """

    minimum: int = 1
    maximum: int | None = None
    gpus: float = 0.0
    cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    serve: tuple[str, ...] = ()
    queue_high: float = 4.0
    busy_s: float = 5.0
    idle_s: float = 120.0
    interval_s: float = 1.0
    drain_s: float = 60.0
    silence_s: float = 60.0

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ValueError(f"minimum: expected a number of workers >= 1, got {self.minimum}")
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"maximum: expected at least minimum = {self.minimum}, or None, got {self.maximum}")
        for name in ("gpus", "cpus", "idle_s", "busy_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: expected a value >= 0, got {getattr(self, name)}")
        for name in ("queue_high", "interval_s", "drain_s", "silence_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a value > 0, got {getattr(self, name)}")
        for option in self.serve:
            if option.partition("=")[0] in _NOT_YOURS:
                raise ValueError(f"serve: expected options without {option}, which the fleet sets itself")

    @property
    def most(self) -> int:
        """The maximum number of workers."""
        return self.minimum if self.maximum is None else self.maximum
