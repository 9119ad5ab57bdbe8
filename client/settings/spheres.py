"""The settings of renderings of spheres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from lumigrad.client.base.arguments import one_of, truth, whole_number
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.settings import RenderSettings, all_channels, background_of, made
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.spheres import Spheres

Semantics = Literal["exact", "compat"]


@dataclass(frozen=True)
class SphereSettings(RenderSettings):
    """The settings of renderings of spheres; the worker checks their ranges.

    Attributes:
        gamma: softness of the depth blending, in [1e-5, 1], relative to the depth range.
        max_depth: far end of the depth range, scene units; None: just behind the scene; computed by the worker if the
            client has no copy of the scene.
        min_depth: near end of the depth range, scene units; spheres that begin before it are not shown. 0: just behind
            the film of Pulsar cameras.
        semantics: "exact" for true derivatives, "compat" for Pulsar's behaviour.
        background: [K] channels, or one number for all of them; empty: 1.
        allowed_difference: share of a pixel's colour that may be lost by stopping early; None: 0 in exact, 0.01 in
            compat.
        max_hits: maximum number of spheres blended per pixel; 0: no limit.
        n_track: number of spheres recorded per pixel in "info", "sphere_ids" and "weights", 1 to 128.
        background_depth: normalised closeness of the background, in (0, 1); None: 1e-6.
        deterministic: sum gradients in a fixed order on every device.

    Example:
        soft = SphereSettings(gamma=0.1, background=0.0)
        frame = client.render(spheres, camera, settings=soft)
    """

    scenes: ClassVar[str] = "spheres"

    gamma: float = 1e-2
    max_depth: float | None = None
    min_depth: float = 0.0
    semantics: Semantics = "exact"
    background: Any = ()
    allowed_difference: float | None = None
    max_hits: int = 0
    n_track: int = 5
    background_depth: float | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        one_of("semantics", self.semantics, get_args(Semantics), quote='"', suffix=" for spheres")
        for name, least, largest in (("max_hits", 0, 2**32 - 1), ("n_track", 1, 128)):
            vars(self)[name] = whole_number(name, getattr(self, name), least, largest)
        vars(self)["deterministic"] = truth("deterministic", self.deterministic)
        vars(self)["background"] = background_of(self.background)
        self._check_numbers()
        # A gamma of 0 in a message stands for the worker's default.
        if not np.float32(self.gamma):
            raise InvalidArgument.of("gamma", f"expected a value in [1e-5, 1], got {self.gamma}")
        vars(self)["is_open"] = self.max_depth is None or type(self.background) is float

    def filled(self, positions: Spheres | None, cameras: Sequence[Camera], channels: int | None) -> SphereSettings:
        """Returns the settings with defaults that depend on cameras and scene; `positions` is None without a copy."""
        changes: dict[str, Any] = {}
        if type(self.background) is float:
            changes["background"] = all_channels(self.background, channels)
        # For a handle without a copy of its scene, the worker computes it.
        if self.max_depth is None and positions is not None:
            changes["max_depth"] = _enclosing_depth(positions, cameras, self.min_depth)
        return made(SphereSettings, {**self.values(), **changes}) if changes else self


def _enclosing_depth(spheres: Spheres, cameras: Sequence[Camera], min_depth: float) -> float:
    """Returns a depth that is behind the bounding box of all spheres for every camera; scene units."""
    smallest = 2.0 * max([min_depth, 1e-3, *(camera.model.focal_length for camera in cameras)])
    if not len(spheres):
        return smallest
    # Sums of finite values may be infinite too.
    with np.errstate(all="ignore"):
        low, high = (corner.tolist() for corner in spheres.bounds)
    if not all(map(math.isfinite, low + high)):
        for name, values in (("positions", spheres.positions), ("radii", spheres.radii)):
            if not np.isfinite(values).all():
                raise InvalidArgument.of(name, "expected finite values, got NaN or infinity among them")
    farthest = max(_farthest(low, high, camera.model.eye.tolist()) for camera in cameras)
    if not 1.001 * farthest <= float(np.finfo(np.float32).max):
        raise InvalidArgument.of("max_depth", "has no default for spheres that are so far away or so large; pass it")
    return max(smallest, 1.001 * farthest)


def _farthest(low: Sequence[float], high: Sequence[float], eye: Sequence[float]) -> float:
    """Returns the distance to the farthest corner of a box. Avoids NumPy, which is slower for so few numbers."""
    return math.hypot(*(max(abs(a - e), abs(b - e)) for a, b, e in zip(low, high, eye, strict=True)))
