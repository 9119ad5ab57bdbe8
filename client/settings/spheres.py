"""How spheres are blended, as a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lumigrad.client.base.arguments import whole_number
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.base import Settings
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.spheres import Spheres

Semantics = Literal["exact", "compat"]


@dataclass(frozen=True)
class SphereSettings(Settings):
    """The settings of one rendering; the worker checks their ranges.

    Attributes:
        gamma: softness of the depth blending, in [1e-5, 1].
        max_depth: far end of the depth range, scene units.
        min_depth: its near end; 0: just behind the film of Pulsar cameras.
        semantics: "exact" or "compat".
        background: K values; empty: all 1.
        allowed_difference: share of the colour that stopping early may cost; None: 0 in exact, 0.01 in compat.
        max_hits: spheres blended per pixel at the most; 0: no limit.
        n_track: spheres recorded per pixel in "info", "sphere_ids" and "weights", 1 to 128.
        background_depth: normalised closeness of the background, in (0, 1); None: 1e-6.
    """

    gamma: float
    max_depth: float
    min_depth: float = 0.0
    semantics: Semantics = "exact"
    background: tuple[float, ...] = ()
    allowed_difference: float | None = None
    max_hits: int = 0
    n_track: int = 5
    background_depth: float | None = None

    def __post_init__(self) -> None:
        if self.semantics not in ("exact", "compat"):
            raise InvalidArgument.of("semantics", f'expected "exact" or "compat", got {self.semantics!r}')
        for name, largest in (("max_hits", 2**32 - 1), ("n_track", 128)):
            vars(self)[name] = whole_number(name, getattr(self, name), 0, largest)
        self._check_numbers()


def enclosing_depth(spheres: Spheres, cameras: Sequence[Camera], min_depth: float) -> float:
    """A depth behind the box around all spheres, seen from every camera; scene units."""
    smallest = 2.0 * max([min_depth, 1e-3, *(camera.model.focal_length for camera in cameras)])
    if not len(spheres):
        return smallest
    low, high = (corner.tolist() for corner in spheres.bounds)
    farthest = max(_farthest(low, high, camera.model.eye.tolist()) for camera in cameras)
    if not math.isfinite(farthest):
        raise InvalidArgument.of("max_depth", "cannot be chosen for positions that are not finite; pass it")
    return max(smallest, 1.001 * farthest)


def _farthest(low: Sequence[float], high: Sequence[float], eye: Sequence[float]) -> float:
    """The distance to the farthest corner of a box. Without NumPy, which takes longer for so few numbers."""
    return math.hypot(*(max(abs(a - e), abs(b - e)) for a, b, e in zip(low, high, eye, strict=True)))
