"""How parameters are optimised, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from lumigrad.client.arguments import number, whole_number
from lumigrad.client.camera import Camera
from lumigrad.client.errors import InvalidArgument
from lumigrad.v1 import training_pb2

Padding = Literal["same", "valid"]
_PADDINGS = {"same": training_pb2.PADDING_SAME, "valid": training_pb2.PADDING_VALID}
_MOST_STEPS = 1 << 40


@dataclass(frozen=True)
class Rate:
    """A learning rate that changes log-linearly, step by step.

    Attributes:
        initial: of step 0.
        final: of step `steps` and all later ones; None: it stays as it is.
        steps: how long that takes.
    """

    initial: float
    final: float | None = None
    steps: int = 0

    def at(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if not self.final:
            return self.initial
        return float(self.initial * (self.final / self.initial) ** min(step / self.steps, 1.0))

    def message(self, name: str) -> training_pb2.Rate:
        """The contract's; `name` is the argument's, for errors."""
        initial = number(name, self.initial)
        if self.final is None:
            return training_pb2.Rate(initial=initial)
        steps = whole_number(name, self.steps, 1, _MOST_STEPS)
        return training_pb2.Rate(initial=initial, final=number(name, self.final), steps=steps)


@dataclass(frozen=True)
class Loss:
    """Weights of what is added up to the loss, each a mean over pixels, channels and the views of a step.

    Attributes:
        l1: of |color - target|.
        l2: of its square.
        dssim: of 1 - SSIM (Wang et al. 2004; window 11, sigma 1.5).
        padding: "same": SSIM of every pixel, with zeros around the picture; "valid": where the window fits.
        depth: of |expected depth - target's depth|, scene units, where that is known; Gaussians only.
        alpha: of |alpha - mask|.
        opacity: of the mean opacity of all primitives.
        scale: of the mean scale of Gaussians, or radius of spheres, scene units.
    """

    l1: float = 0.8
    l2: float = 0.0
    dssim: float = 0.2
    padding: Padding = "same"
    depth: float = 0.0
    alpha: float = 0.0
    opacity: float = 0.0
    scale: float = 0.0

    def message(self) -> training_pb2.Loss:
        """The contract's."""
        if self.padding not in get_args(Padding):
            raise InvalidArgument.of("padding", f"expected {' or '.join(get_args(Padding))}, got {self.padding!r}")
        names = ("l1", "l2", "dssim", "depth", "alpha", "opacity", "scale")
        weights = {name: number(name, getattr(self, name)) for name in names}
        return training_pb2.Loss(**weights, padding=_PADDINGS[self.padding])


Rates = Mapping[str, "Rate | float"]


def rates_message(rates: Rates) -> dict[str, training_pb2.Rate]:
    """The contract's rates by parameter."""
    return {
        name: (rate if isinstance(rate, Rate) else Rate(rate)).message(f"rates[{name!r}]")
        for name, rate in rates.items()
    }


def default_rates(kind: str, tensors: Sequence[str], extent: float, steps: int) -> dict[str, Rate | float]:
    """Rates that work for most scenes.

    Those of Gaussians are Kerbl et al.'s (2023); spheres have theirs by analogy.

    Args:
        kind: "gaussians" or "spheres".
        tensors: of the scene.
        extent: the radius of what the cameras see, scene units.
        steps: of the training.
    """
    means = Rate(1.6e-4 * extent, 1.6e-6 * extent, steps)
    of_gaussians: dict[str, Rate | float] = {
        **{"means": means, "quats": 1e-3, "scales": 5e-3, "opacities": 5e-2},
        **({"sh0": 2.5e-3, "sh_rest": 1.25e-4} if "sh" in tensors else {"colors": 2.5e-3}),
    }
    of_spheres: dict[str, Rate | float] = {
        **{"positions": Rate(1e-3 * extent, 1e-5 * extent, steps), "colors": 1e-2, "radii": 5e-3},
        **({"opacities": 5e-2} if "opacities" in tensors else {}),
    }
    return of_gaussians if kind == "gaussians" else of_spheres


def extent_of(cameras: Sequence[Camera]) -> float:
    """The radius of what cameras see, scene units: 1.1 times the largest distance from their mean position.

    A single camera tells nothing: 1.
    """
    positions = np.array([camera.model.eye for camera in cameras], np.float64)
    extent = 1.1 * float(np.linalg.norm(positions - positions.mean(axis=0), axis=1).max())
    return extent or 1.0
