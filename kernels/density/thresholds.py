"""Thresholds of adaptive density control."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number

# Scales of a split row are divided by this in its children.
SHRINK = 1.6


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of adaptive density control (Kerbl et al., SIGGRAPH 2023), by default gsplat's.

    Sizes are fractions of the scene's extent, radii fractions of the longer side of the image.

    Attributes:
        grow_gradient: Rows whose mean gradient (`Statistics`) is above this are cloned or split; infinity: none.
        clone_size: Growing rows whose largest scale is at most this are cloned, the others split.
        split_radius: Rows whose largest projected radius is above this are always split, never cloned; None: none.
        prune_opacity: Rows whose opacity is below this are pruned.
        prune_size: After a reset of opacities, rows whose largest scale is above this are pruned; None: none.
        prune_radius: After a reset of opacities, rows whose largest projected radius is above this are pruned; None:
            none.
        revised_opacity: The two children of a Gaussian get the opacity at which both together are as opaque as it was
            (Bulò et al., "Revising densification in Gaussian splatting", ECCV 2024). No effect on spheres.

    Raises:
        ArgumentError: A value is out of range.
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
        """The extension's parameters, as values before the activations.

        Args:
            gaussians: Whether scales are logarithms and opacities logits, as for Gaussians.
            extent: The extent of the scene, scene units.
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
    """The logit of an opacity in [0, 1]; infinite for 0 and 1."""
    if opacity <= 0.0:
        return -math.inf
    return math.inf if opacity >= 1.0 else math.log(opacity) - math.log1p(-opacity)


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
