"""The numbers of a cost term, which cuRobo keeps in tensors -> settings."""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.client.arguments import number, whole_number
from lumigrad.client.distance_settings import DistanceSettings

_MOST_STEPS = 255


def first(name: str, value: Any) -> float:
    """The first number of a tensor, or a number."""
    if isinstance(value, torch.Tensor) and value.numel():
        value = value.detach().reshape(-1)[0]
    return number(name, value)


def settings_of(
    weight: Any,
    activation_distance: Any,
    max_dist: Any,
    *,
    sweep_steps: int = 0,
    speed_dt: Any = None,
    compute_esdf: bool = False,
) -> DistanceSettings:
    """What to ask for.

    Args:
        weight: factor on costs.
        activation_distance: where costs begin, metres.
        max_dist: search radius, metres.
        sweep_steps: 0: not swept.
        speed_dt: seconds between time steps; None: without the speed metric.
        compute_esdf: signed distance instead of a cost.
    """
    sweep_steps = whole_number("sweep_steps", sweep_steps, 0, _MOST_STEPS)
    return DistanceSettings(
        semantics="curobo_field" if compute_esdf else "curobo",
        activation_distance=first("activation_distance", activation_distance),
        max_distance=first("max_dist", max_dist),
        sweep=sweep_steps > 0,
        samples=sweep_steps or None,
        speed_metric=speed_dt is not None,
        time_step_s=None if speed_dt is None else first("speed_dt", speed_dt),
        weight=first("weight", weight),
    )
