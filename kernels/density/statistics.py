"""Statistics of each row over the views of a training, from which a plan is made."""

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
    """Statistics over the views since the last plan; contiguous tensors on the device of the parameters.

    Attributes:
        gradient: f32 [N], sums of norms of gradients. Gaussians: with respect to the projected means in units of half
            the image's size, times the number of views in a step. Spheres: with respect to the positions.
        views: i32 [N], the number of views in which the row was visible.
        radii: f32 [N], the largest projected radius, as a fraction of the longer side of the image; 0 for spheres.

    Raises:
        ArgumentError: A tensor differs from the others in its shape or device, has the wrong type or is not contiguous.
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
        """Statistics of no views, for the rows of `parameters`."""
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
        """Keyed by the names of the extension's arguments."""
        return {"to_gradient": self.gradient, "to_views": self.views, "to_radii": self.radii}


def accumulate(
    statistics: Statistics, means2d_gradient: torch.Tensor, radii: torch.Tensor, *, width: int, height: int
) -> Stages:
    """Adds the statistics of one step's views of Gaussians, as gsplat's default strategy does.

    Args:
        statistics: The statistics to update, in place.
        means2d_gradient: f32 [C, N, 2], dL/d projected means, per pixel: `backward`'s "means2d", or "means2d_abs" for
            absolute gradients (Ye et al., AbsGS, 2024), which need a higher threshold.
        radii: i32 [C, N, 2], pixels, the output of `forward`. A Gaussian is visible where both are above 0.
        width: Width of the image, pixels.
        height: Height of the image, pixels.

    Returns:
        The times of the stages.

    Raises:
        ArgumentError: An argument is invalid.
    """
    gradient = _checked(statistics, "means2d_gradient", means2d_gradient, 2)
    _check_counts("radii", radii, (*gradient.shape[:2], 2), gradient.device)
    check_size(width, height)
    views = gradient.shape[0]
    scale = (0.5 * width * views, 0.5 * height * views, 1.0 / max(width, height))
    arrays = {"gradient": gradient, "seen": radii.contiguous(), **statistics.arrays()}
    return Stages([engine_for(gradient.device).run("accumulate", *scale, **arrays)])


def accumulate_spheres(statistics: Statistics, positions_gradient: torch.Tensor, touched: torch.Tensor) -> Stages:
    """Adds the statistics of one step of spheres.

    Args:
        statistics: The statistics to update, in place.
        positions_gradient: f32 [N, 3], dL/d positions.
        touched: i32 [N], the number of pixels to which each sphere contributed; a sphere is visible if it is above 0.

    Returns:
        The times of the stages.

    Raises:
        ArgumentError: An argument is invalid.
    """
    gradient = _checked(statistics, "positions_gradient", positions_gradient, 3)
    _check_counts("touched", touched, gradient.shape[1:2], gradient.device)
    arrays = {"gradient": gradient, "seen": touched.contiguous(), **statistics.arrays()}
    return Stages([engine_for(gradient.device).run("accumulate", 1.0, 1.0, 0.0, **arrays)])


def check_statistics(statistics: Statistics, count: int, device: torch.device) -> None:
    """Checks that statistics have `count` rows and are on `device`.

    Raises:
        ArgumentError: The statistics fail a check.
    """
    if not isinstance(statistics, Statistics):
        raise ArgumentError("statistics", "Statistics, e.g. of Statistics.zeros", type(statistics).__name__)
    if statistics.count != count:
        raise ArgumentError("statistics", f"statistics of {count} rows", f"{statistics.count} rows")
    if statistics.gradient.device != device:
        raise ArgumentError("statistics", f"statistics on {device}", f"statistics on {statistics.gradient.device}")


def _checked(statistics: Statistics, name: str, gradient: torch.Tensor, axes: int) -> torch.Tensor:
    """The checked gradient as a contiguous tensor [views, N, axes]."""
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
