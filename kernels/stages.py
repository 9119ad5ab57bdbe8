"""How long the stages of a call took on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

StageTimes = Callable[[], Mapping[str, float]]


@dataclass
class Stages:
    """Milliseconds per kernel stage, summed over the parts of a call; read when asked for, not before."""

    views: list[StageTimes] = field(default_factory=list)

    def milliseconds(self) -> dict[str, float]:
        """By stage; empty while a CUDA device is still at work on the call."""
        total: dict[str, float] = {}
        for view in self.views:
            for stage, time in view().items():
                total[stage] = total.get(stage, 0.0) + time
        return total
