"""Beyond which values a row grows or goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number

# By which children are smaller than what was split.
SHRINK = 1.6


@dataclass(frozen=True)
class Thresholds:
    """Those of adaptive density control (Kerbl et al., SIGGRAPH 2023); defaults are those of gsplat's default strategy.

    Sizes are parts of the scene's extent, radii parts of the longer side of the film.

    Attributes:
        grow_gradient: Rows grow whose mean gradient (`Statistics`) is above; infinity: none.
        clone_size: What grows is cloned if its largest scale is at most this, and split otherwise.
        split_radius: Rows whose largest radius is above are split in any case, and not cloned; None: none.
        prune_opacity: Rows go whose opacity is below.
        prune_size: Rows go whose largest scale is above, once opacities were reset; None: none.
        prune_radius: Rows go whose largest radius was above, once opacities were reset; None: none.
        revised_opacity: Children of a Gaussian are so transparent that two of them upon each other are as opaque as it
            was (Bulò et al., "Revising densification in Gaussian splatting", ECCV 2024). Spheres: no effect.

    Raises:
        ArgumentError: A value is outside its range.
    """

    grow_gradient: float = 2e-4
    clone_size: float = 0.01
    split_radius: float | None = None
    prune_opacity: float = 0.005
    prune_size: float | None = 0.1
    prune_radius: float | None = None
    revised_opacity: bool = False

    def __post_init__(self) -> None:
        for name in ("grow_gradient", "clone_size", "split_radius", "prune_size", "prune_radius"):
            value, optional = getattr(self, name), name in ("split_radius", "prune_size", "prune_radius")
            fits = (value is None and optional) or (is_number(value) and float(value) >= 0.0)
            check(fits, name, "None or a value >= 0" if optional else "a value >= 0", value)
        opacity = self.prune_opacity
        check(is_number(opacity) and 0.0 <= float(opacity) < 1.0, "prune_opacity", "a value in [0, 1)", opacity)
        check(isinstance(self.revised_opacity, bool), "revised_opacity", "True or False", self.revised_opacity)

    def native(self, gaussians: bool, extent: float, after_reset: bool) -> Any:
        """For the extension: raw values, of Gaussians or of spheres.

        Args:
            gaussians: Whether scales are logarithms and opacities logits.
            extent: Of the scene, scene units.
            after_reset: Whether opacities were reset before.
        """
        size = _log if gaussians else float
        opacity = logit if gaussians else float
        prune_size = math.inf if self.prune_size is None or not after_reset else self.prune_size * extent
        kept = 1.0 - self.prune_opacity
        child_opacity = 1.0 - kept * kept if self.revised_opacity and gaussians else self.prune_opacity
        return _native.make_density_limits(
            gradient=float(self.grow_gradient),
            clone_size=size(self.clone_size * extent),
            split_radius=math.inf if self.split_radius is None else float(self.split_radius),
            prune_opacity=opacity(self.prune_opacity),
            child_opacity=opacity(child_opacity),
            prune_size=size(prune_size),
            child_size=size(SHRINK * prune_size),
            prune_radius=math.inf if self.prune_radius is None or not after_reset else float(self.prune_radius),
        )


def logit(opacity: float) -> float:
    """The raw value of an opacity in [0, 1]."""
    if opacity <= 0.0:
        return -math.inf
    return math.inf if opacity >= 1.0 else math.log(opacity) - math.log1p(-opacity)


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
