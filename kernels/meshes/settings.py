"""Settings of a query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number, is_whole

SEMANTICS = ("exact", "curobo", "curobo_field")
REDUCTIONS = ("sum", "max")
MAX_SAMPLES = 256
# cuRobo stores the number of steps in a byte.
MAX_CUROBO_STEPS = 255
CUROBO_MAX_DISTANCE = 0.1


@dataclass(frozen=True)
class Settings:
    """Settings of a query.

    Attributes:
        semantics: "exact" (true distances at any depth, conservative sweeps, true derivatives), "curobo" (costs and
            gradients as cuRobo 0.7 computes them) or "curobo_field" (cuRobo's compute_esdf: the cost is the signed
            distance, positive inside).
        activation_distance: Distance between a sphere's surface and an obstacle below which costs are above 0, metres.
        max_distance: Exact: the largest distance outside that is searched; None: no limit. cuRobo's: the search radius;
            None: 0.1 m. Metres.
        sweep: Costs include the motion between time steps; each time step gets half of both adjacent segments.
        samples: Maximum number of samples for each half segment of a sweep. Exact: a power of two up to 256. cuRobo's:
            its sweep_steps, 0 to 255.
        speed_metric: Costs are multiplied by the speed, m/s.
        time_step_s: Duration of a time step, seconds; needed by the speed metric.
        reduction: "sum" or, with "exact" semantics, "max" over samples and obstacles.
        weight: Factor of costs and their gradients.

    Raises:
        ArgumentError: A value is out of range.
    """

    semantics: str = "exact"
    activation_distance: float = 0.0
    max_distance: float | None = None
    sweep: bool = False
    samples: int = 32
    speed_metric: bool = False
    time_step_s: float | None = None
    reduction: str = "sum"
    weight: float = 1.0

    def __post_init__(self) -> None:
        check(self.semantics in SEMANTICS, "semantics", f"one of {SEMANTICS}", self.semantics)
        for name in ("sweep", "speed_metric"):
            check(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        self._check_lengths()
        self._check_samples()
        step = self.time_step_s
        expected = "None or a finite value above 0, seconds"
        check(step is None or (is_number(step) and 0.0 < float(step) < math.inf), "time_step_s", expected, step)
        check(step is not None or not self.speed_metric, "time_step_s", "a value, since speed_metric is on", step)
        check(self.reduction in REDUCTIONS, "reduction", f"one of {REDUCTIONS}", self.reduction)
        if not self.exact:
            expected = f"'sum' with semantics '{self.semantics}'"
            check(self.reduction == "sum", "reduction", expected, self.reduction)
        if self.semantics == "curobo_field":
            for name in ("sweep", "speed_metric"):
                check(not getattr(self, name), name, "False with semantics 'curobo_field'", getattr(self, name))
        check(is_number(self.weight) and math.isfinite(self.weight), "weight", "a finite number", self.weight)

    def _check_lengths(self) -> None:
        distance, limit = self.activation_distance, self.max_distance
        ok = is_number(distance) and 0.0 <= float(distance) < math.inf
        check(ok, "activation_distance", "a finite value >= 0, metres", distance)
        ok = limit is None or (is_number(limit) and 0.0 < float(limit) < math.inf)
        check(ok, "max_distance", "None or a finite value above 0, metres", limit)

    def _check_samples(self) -> None:
        count = self.samples
        if self.exact:
            ok = is_whole(count) and 1 <= count <= MAX_SAMPLES and count & (count - 1) == 0
            check(ok, "samples", f"a power of two from 1 to {MAX_SAMPLES}", count)
        else:
            ok = is_whole(count) and 0 <= count <= MAX_CUROBO_STEPS
            check(ok, "samples", f"0 to {MAX_CUROBO_STEPS} steps with semantics '{self.semantics}'", count)

    @property
    def exact(self) -> bool:
        """Whether semantics is "exact"."""
        return self.semantics == "exact"

    @property
    def reach(self) -> float:
        """The largest distance that is searched, metres; may be infinite."""
        if self.max_distance is not None:
            return float(self.max_distance)
        return math.inf if self.exact else CUROBO_MAX_DISTANCE

    @cached_property
    def native(self) -> _native.MeshSettings:
        """The extension's settings."""
        return self._native(self.speed_metric)

    @cached_property
    def native_without_speed(self) -> _native.MeshSettings:
        """The extension's settings without the speed metric, for callers that scale the upstream gradient instead."""
        return self._native(False)

    def _native(self, speed: bool) -> _native.MeshSettings:
        return _native.make_mesh_settings(
            mode=SEMANTICS.index(self.semantics),
            sweep=self.sweep,
            speed=speed,
            maximum=self.reduction == "max",
            activation=float(self.activation_distance),
            reach=self.reach,
            samples=int(self.samples),
            dt=float(self.time_step_s or 1.0),
        )
