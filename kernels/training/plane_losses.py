"""Losses of depth, alpha and normal images, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lumigrad.kernels.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class PlaneLoss:
    """A loss and its gradient.

    Attributes:
        loss: f64 [], the loss, on the device.
        gradient: f32 [C, H, W], d loss / d the first argument of the function.
    """

    loss: torch.Tensor
    gradient: torch.Tensor

    @property
    def value(self) -> float:
        """The loss; on CUDA this waits for the device."""
        return float(self.loss)


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


@dataclass(frozen=True, eq=False)
class NormalLoss:
    """A loss and its gradients.

    Attributes:
        loss: f64 [], the loss, on the device.
        gradients: f32, d loss / d "alpha", "normals" and "surface_normals", by name.
    """

    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor]

    @property
    def value(self) -> float:
        """The loss; on CUDA this waits for the device."""
        return float(self.loss)


def normal_loss(alpha: torch.Tensor, normals: torch.Tensor, surface_normals: torch.Tensor) -> NormalLoss:
    """The mean over all pixels of sum w (1 - n . N), the normal consistency of surfels.

    w and n are the blending weights and normals of the surfels that a pixel sees, so the sum is alpha - normals . N,
    and N is the normal of the surface there (Huang et al., "2D Gaussian Splatting for Geometrically Accurate Radiance
    Fields", 2024, equation 14). Pixels without N, as on the border, count as 0.

    Args:
        alpha: f32 [C, H, W], the sums of w.
        normals: f32 [C, H, W, 3], the sums of w n.
        surface_normals: f32 [C, H, W, 3], N, of length 1 or 0.

    Returns:
        The loss and its gradients.

    Raises:
        ArgumentError: An argument is invalid.
    """
    _check("alpha", alpha, alpha)
    for name, tensor in (("normals", normals), ("surface_normals", surface_normals)):
        expected = (*alpha.shape, 3)
        if tensor.shape != expected or tensor.dtype != torch.float32:
            raise ArgumentError(name, f"a float32 tensor of shape {list(expected)}", f"{tensor.dtype} {tensor.shape}")
    known = (surface_normals != 0).any(dim=-1)
    count = max(alpha.numel(), 1)
    sums = torch.where(known, alpha - (normals * surface_normals).sum(dim=-1), 0.0)
    gradients = {
        "alpha": known.to(torch.float32) / count,
        "normals": -surface_normals / count,
        "surface_normals": torch.where(known[..., None], -normals / count, 0.0),
    }
    return NormalLoss(sums.sum(dtype=torch.float64) / count, gradients)


def _mean_difference(plane: torch.Tensor, target: torch.Tensor, known: torch.Tensor) -> PlaneLoss:
    difference = torch.where(known, plane - target, 0.0)
    count = known.count_nonzero().clamp_min(1)
    return PlaneLoss(difference.abs().sum(dtype=torch.float64) / count, difference.sign() / count)


def _check(name: str, plane: torch.Tensor, target: torch.Tensor) -> None:
    for argument, tensor in ((name, plane), ("target", target)):
        fits = isinstance(tensor, torch.Tensor) and tensor.dim() == 3 and tensor.dtype == torch.float32
        if not fits or tensor.shape != plane.shape:
            expected = f"a float32 tensor of shape {list(plane.shape) if argument == 'target' else '[C, H, W]'}"
            raise ArgumentError(argument, expected, f"{getattr(tensor, 'shape', type(tensor).__name__)}")
