"""Losses of depth and alpha images, [C, H, W], and their gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lumigrad.kernels.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class PlaneLoss:
    """A loss and its gradient.

    Attributes:
        value: The loss.
        gradient: f32 [C, H, W], d value / d the first argument of the loss.
    """

    value: float
    gradient: torch.Tensor


def depth_loss(depth: torch.Tensor, target: torch.Tensor) -> PlaneLoss:
    """The mean of |depth - target| over all pixels with a known target depth; 0 if there are none.

    Args:
        depth: f32 [C, H, W], scene units.
        target: f32 [C, H, W], scene units; values that are not finite, or <= 0, mean unknown.

    Returns:
        The loss, and its gradient with respect to `depth`.

    Raises:
        ArgumentError: An argument is invalid.
    """
    _check("depth", depth, target)
    return _mean_difference(depth, target, target.isfinite() & (target > 0))


def alpha_loss(alpha: torch.Tensor, target: torch.Tensor) -> PlaneLoss:
    """The mean of |alpha - target| over all pixels.

    Args:
        alpha: f32 [C, H, W].
        target: f32 [C, H, W], 0 to 1.

    Returns:
        The loss, and its gradient with respect to `alpha`.

    Raises:
        ArgumentError: An argument is invalid.
    """
    _check("alpha", alpha, target)
    return _mean_difference(alpha, target, torch.ones_like(target, dtype=torch.bool))


def _mean_difference(plane: torch.Tensor, target: torch.Tensor, known: torch.Tensor) -> PlaneLoss:
    difference = torch.where(known, plane - target, 0.0)
    count = max(int(known.count_nonzero()), 1)
    value = float(difference.abs().sum(dtype=torch.float64)) / count
    return PlaneLoss(value, difference.sign() / count)


def _check(name: str, plane: torch.Tensor, target: torch.Tensor) -> None:
    for argument, tensor in ((name, plane), ("target", target)):
        fits = isinstance(tensor, torch.Tensor) and tensor.dim() == 3 and tensor.dtype == torch.float32
        if not fits or tensor.shape != plane.shape:
            expected = f"a float32 tensor of shape {list(plane.shape) if argument == 'target' else '[C, H, W]'}"
            raise ArgumentError(argument, expected, f"{getattr(tensor, 'shape', type(tensor).__name__)}")
