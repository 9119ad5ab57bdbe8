"""How Gaussians are projected and blended, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from lumigrad.client.base.arguments import one_of, whole_number
from lumigrad.client.base.arrays import float64_array
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.base import Settings

GaussianSemantics = Literal["exact", "gsplat", "inria_depth", "inria_exact"]


class Transform(NamedTuple):
    """Places a slice of the Gaussians rigidly in the world: means, covariances and spherical harmonics turn with it.

    Attributes:
        begin: the first Gaussian of the slice.
        end: the one after its last; slices are disjoint.
        matrix: [4, 4] object to world, for column vectors; the last row is 0 0 0 1.
    """

    begin: int
    end: int
    matrix: Any


@dataclass(frozen=True)
class GaussianSettings(Settings):
    """The settings of one rendering. What is None has the worker's default, named here; the worker checks ranges.

    Attributes:
        semantics: "exact": gsplat's image formation with true derivatives; "gsplat": its own gradients; "inria_depth":
            Inria's image formation with the gradients of its depth fork; "inria_exact": with true derivatives.
        sh_degree: degree of the spherical harmonics in use, at most that stored; None: all that is stored.
        antialiased: scale opacities by what the blur took from the area of each Gaussian.
        background: D values, or D for each camera; empty: 0.
        transforms: places slices of the Gaussians in the world.
        deterministic: sum gradients in a fixed order on every device.
        eps2d: blur in the image, pixels squared; 0.3.
        near: least depth shown, scene units; 0.01.
        far: largest depth shown; 1e10.
        radius_clip: Gaussians with radii of at most this many pixels are not shown; 0.
        alpha_min: shares of a pixel below it are skipped; 1/255.
        alpha_max: larger shares are cut to it; 0.99.
        transmittance_min: a pixel is complete once what remains of the light falls to this; 1e-4.
        pixel_center: where the centre of the first pixel is, pixels: 0.5 or 0; 0.5.
        scale_modifier: factor on all scales; 1.
    """

    semantics: GaussianSemantics = "exact"
    sh_degree: int | None = None
    antialiased: bool = False
    background: tuple[float, ...] = ()
    transforms: Sequence[Transform] = ()
    deterministic: bool = False
    eps2d: float | None = None
    near: float | None = None
    far: float | None = None
    radius_clip: float | None = None
    alpha_min: float | None = None
    alpha_max: float | None = None
    transmittance_min: float | None = None
    pixel_center: float | None = None
    scale_modifier: float | None = None

    def __post_init__(self) -> None:
        one_of("semantics", self.semantics, get_args(GaussianSemantics), quote='"', suffix=" for Gaussians")
        if self.sh_degree is not None:
            vars(self)["sh_degree"] = whole_number("sh_degree", self.sh_degree, 0, 4)
        self._check_numbers()
        vars(self)["transforms"] = tuple(_transform(index, entry) for index, entry in enumerate(self.transforms))


def _transform(index: int, entry: Any) -> Transform:
    field = f"transforms[{index}]"
    if not isinstance(entry, tuple | list) or len(entry) != 3:
        raise InvalidArgument.of(field, f"expected (begin, end, matrix), got {type(entry).__name__}; pass a Transform")
    begin, end = (whole_number(f"{field}.{name}", entry[k], 0, 2**63 - 1) for k, name in enumerate(("begin", "end")))
    if not begin < end:
        raise InvalidArgument.of(field, f"expected begin < end, got {begin} and {end}")
    matrix = float64_array(f"{field}.matrix", entry[2], (4, 4))
    if not np.allclose(matrix[3], (0.0, 0.0, 0.0, 1.0), atol=1e-6):
        raise InvalidArgument.of(f"{field}.matrix", f"expected the last row 0 0 0 1, got {matrix[3].tolist()}")
    return Transform(begin, end, matrix)
