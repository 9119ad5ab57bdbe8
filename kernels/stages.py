"""Times of the kernel stages of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

StageTimes = Callable[[], Mapping[str, float]]


@dataclass
class Stages:
    """Milliseconds per kernel stage, summed over the launches of a call; read from the device on request only."""

    views: list[StageTimes] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all launches have ended."""
        return all(view() for view in self.views)

    def milliseconds(self) -> dict[str, float]:
        """Milliseconds by stage; a launch that a CUDA device has not completed adds nothing."""
        total: dict[str, float] = {}
        for view in self.views:
            for stage, time in view().items():
                total[stage] = total.get(stage, 0.0) + time
        return total
