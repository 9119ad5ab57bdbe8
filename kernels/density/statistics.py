"""What the views of a training tell of each row: the grounds on which it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lumigrad.kernels.checks import check, check_size, check_tensor
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.stages import Stages


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over the views since they were last zero, contiguous, on the device of the parameters.

    Attributes:
        gradient: f32 [N], lengths of gradients: of Gaussians those of the projected means in units of half the film,
            times the number of views in a step, of spheres those of the positions.
        views: i32 [N], in which a row was seen.
        radii: f32 [N], the largest, as a part of the longer side of the film; of spheres 0.

    Raises:
        ArgumentError: A tensor does not fit the others.
    """

    gradient: torch.Tensor
    views: torch.Tensor
    radii: torch.Tensor

    def __post_init__(self) -> None:
        gradient = self.gradient
        device = gradient.device if isinstance(gradient, torch.Tensor) else torch.device("cpu")
        check_tensor("gradient", gradient, (None,), device, "statistics")
        _check_counts("views", self.views, gradient.shape, device)
        check_tensor("radii", self.radii, tuple(gradient.shape), device, "statistics")
        for name in ("gradient", "views", "radii"):
            strides = getattr(self, name).stride()
            check(getattr(self, name).is_contiguous(), name, "a contiguous tensor", f"strides {list(strides)}")

    @staticmethod
    def zeros(parameters: Parameters) -> Statistics:
        """Of nothing so far."""
        check_parameters(parameters)
        count, device = parameters.count, parameters.device
        return Statistics(
            torch.zeros(count, device=device),
            torch.zeros(count, dtype=torch.int32, device=device),
            torch.zeros(count, device=device),
        )

    @property
    def count(self) -> int:
        """N."""
        return self.gradient.shape[0]

    def arrays(self) -> dict[str, torch.Tensor]:
        """By the names that the extension uses."""
        return {"to_gradient": self.gradient, "to_views": self.views, "to_radii": self.radii}


def accumulate(
    statistics: Statistics, means2d_gradient: torch.Tensor, radii: torch.Tensor, *, width: int, height: int
) -> Stages:
    """Adds what a step's views tell of Gaussians, as gsplat's default strategy does.

    Args:
        statistics: To add to, in place.
        means2d_gradient: f32 [C, N, 2], of the loss by the projected means, pixels: `backward`'s "means2d", or
            "means2d_abs" for what is called absolute gradients (Ye et al., AbsGS, 2024), which need a higher threshold.
        radii: i32 [C, N, 2], pixels, of `forward`. A Gaussian is seen where both are above 0.
        width: Of the film, pixels.
        height: Of the film, pixels.

    Returns:
        How long it took.

    Raises:
        ArgumentError: An argument does not fit.
    """
    gradient = _checked(statistics, "means2d_gradient", means2d_gradient, 2)
    _check_counts("radii", radii, (*gradient.shape[:2], 2), gradient.device)
    check_size(width, height)
    views = gradient.shape[0]
    scale = (0.5 * width * views, 0.5 * height * views, 1.0 / max(width, height))
    arrays = {"gradient": gradient, "seen": radii.contiguous(), **statistics.arrays()}
    return Stages([engine_for(gradient.device).run("accumulate", *scale, **arrays)])


def accumulate_spheres(statistics: Statistics, positions_gradient: torch.Tensor, touched: torch.Tensor) -> Stages:
    """Adds what a step tells of spheres.

    Args:
        statistics: To add to, in place.
        positions_gradient: f32 [N, 3], of the loss by the positions.
        touched: i32 [N], in how many pixels each took part: it is seen where that is above 0.

    Returns:
        How long it took.

    Raises:
        ArgumentError: An argument does not fit.
    """
    gradient = _checked(statistics, "positions_gradient", positions_gradient, 3)
    _check_counts("touched", touched, gradient.shape[1:2], gradient.device)
    arrays = {"gradient": gradient, "seen": touched.contiguous(), **statistics.arrays()}
    return Stages([engine_for(gradient.device).run("accumulate", 1.0, 1.0, 0.0, **arrays)])


def check_statistics(statistics: Statistics, count: int, device: torch.device) -> None:
    """Statistics of so many rows on `device`.

    Raises:
        ArgumentError: These are others.
    """
    if not isinstance(statistics, Statistics):
        raise ArgumentError("statistics", "Statistics, e.g. of Statistics.zeros", type(statistics).__name__)
    if statistics.count != count:
        raise ArgumentError("statistics", f"those of {count} rows", f"of {statistics.count}")
    if statistics.gradient.device != device:
        raise ArgumentError("statistics", f"those on {device}", f"on {statistics.gradient.device}")


def _checked(statistics: Statistics, name: str, gradient: torch.Tensor, axes: int) -> torch.Tensor:
    """[views, N, axes], contiguous."""
    if not isinstance(statistics, Statistics):
        raise ArgumentError("statistics", "Statistics, e.g. of Statistics.zeros", type(statistics).__name__)
    shape = (None, statistics.count, axes) if axes == 2 else (statistics.count, axes)
    check_tensor(name, gradient, shape, statistics.gradient.device, "statistics")
    whole = gradient.detach().contiguous()
    return whole if axes == 2 else whole[None]


def _check_counts(name: str, counts: torch.Tensor, shape: Sequence[int], device: torch.device) -> None:
    expected = f"an int32 tensor of shape {list(shape)}"
    if not isinstance(counts, torch.Tensor):
        raise ArgumentError(name, expected, type(counts).__name__)
    if counts.dtype != torch.int32 or list(counts.shape) != list(shape):
        actual = f"{str(counts.dtype).removeprefix('torch.')} of shape {list(counts.shape)}"
        raise ArgumentError(name, expected, actual)
    if counts.device != device:
        raise ArgumentError(name, f"a tensor on {device}, where statistics are", f"one on {counts.device}")
