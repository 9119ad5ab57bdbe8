"""The settings of distance queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lumigrad.client.base.arguments import one_of, truth, whole_number
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.settings import Settings

DistanceSemantics = Literal["exact", "curobo", "curobo_field"]
Reduction = Literal["sum", "max"]


@dataclass(frozen=True)
class DistanceSettings(Settings):
    """The settings of one query; the worker checks their ranges.

    With d = radius + activation distance - distance of the centre, the cost of a sphere near an obstacle is 0 for
    d <= 0, d^2 / (2 a) up to d = a, the activation distance, and d - a / 2 from there on; metres.

    Attributes:
        semantics: "exact": true distances, conservative sweeps, true derivatives; "curobo": the costs of cuRobo 0.7,
            including its search radius, marching and gradients; "curobo_field": those of its compute_esdf.
        activation_distance: clearance of a sphere's surface below which the sphere has a cost, metres, >= 0.
        max_distance: the search radius around centres, metres; None: unlimited in exact, 0.1 in curobo.
        sweep: also compute costs along the path, halfway to the time steps before and after.
        samples: maximum number of samples on each half of a sweep; in exact a power of two up to 256; None: 32.
        speed_metric: multiply the costs of all time steps but the first and the last by the speed there, in m/s.
        time_step_s: time between time steps, seconds; needed with speed_metric.
        reduction: "sum" or "max" over the costs of samples and obstacles.
        weight: factor on costs and their gradients.
    """

    semantics: DistanceSemantics = "exact"
    activation_distance: float = 0.0
    max_distance: float | None = None
    sweep: bool = False
    samples: int | None = None
    speed_metric: bool = False
    time_step_s: float | None = None
    reduction: Reduction = "sum"
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name, kinds in (("semantics", DistanceSemantics), ("reduction", Reduction)):
            one_of(name, getattr(self, name), get_args(kinds), quote='"')
        for name in ("sweep", "speed_metric"):
            vars(self)[name] = truth(name, getattr(self, name))
        self._check_numbers()
        if self.samples is not None:
            vars(self)["samples"] = whole_number("samples", self.samples, 0, 256)
        if self.speed_metric and self.time_step_s is None:
            raise InvalidArgument.of("time_step_s", "expected seconds between time steps for speed_metric, got None")
