"""Losses of depth, alpha and normal images and of the mean of a parameter, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.training.engine import CpuEngine, engine_for
from lumigrad.kernels.training.tensors import check_tensor


@dataclass(frozen=True, eq=False)
class PlaneLoss:
    """A loss and its gradient.

    Attributes:
        sums: f64 [C, 2], on the device: for each view the number of pixels that count, and the sum of their
            differences; `plane_loss_value` returns the loss.
        gradient: f32 [C, H, W], d weight * loss / d the first argument of the function.
        times: Time of the kernel.
    """

    sums: torch.Tensor
    gradient: torch.Tensor
    times: Stages

    @property
    def value(self) -> float:
        """The loss; on CUDA this waits for the device."""
        return plane_loss_value(self.sums.tolist())


def plane_loss_value(sums: Sequence[Sequence[float]]) -> float:
    """`PlaneLoss.value` from its sums on the host."""
    return sum(row[1] for row in sums) / max(sum(row[0] for row in sums), 1.0)


def depth_loss(depth: torch.Tensor, target: torch.Tensor, weight: float = 1.0) -> PlaneLoss:
    """The mean of |depth - target| over all pixels with a known target depth; 0 if there are none.

    Args:
        depth: f32 [C, H, W], scene units.
        target: f32 [C, H, W], scene units; values that are not finite, or <= 0, mean unknown.
        weight: A factor of the gradient.

    Returns:
        The loss, and its gradient with respect to `depth`.

    Raises:
        ArgumentError: An argument is invalid.
    """
    return _compared("depth", depth, target, weight, known=True)


def alpha_loss(alpha: torch.Tensor, target: torch.Tensor, weight: float = 1.0) -> PlaneLoss:
    """The mean of |alpha - target| over all pixels.

    Args:
        alpha: f32 [C, H, W].
        target: f32 [C, H, W], 0 to 1.
        weight: A factor of the gradient.

    Returns:
        The loss, and its gradient with respect to `alpha`.

    Raises:
        ArgumentError: An argument is invalid.
    """
    return _compared("alpha", alpha, target, weight, known=False)


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


def normal_loss(
    alpha: torch.Tensor, normals: torch.Tensor, surface_normals: torch.Tensor, weight: float = 1.0
) -> NormalLoss:
    """The mean over all pixels of sum w (1 - n . N), the normal consistency of surfels.

    w and n are the blending weights and normals of the surfels that a pixel sees, so the sum is alpha - normals . N,
    and N is the normal of the surface there (Huang et al., "2D Gaussian Splatting for Geometrically Accurate Radiance
    Fields", 2024, equation 14). Pixels without N, as on the border, count as 0.

    Args:
        alpha: f32 [C, H, W], the sums of w.
        normals: f32 [C, H, W, 3], the sums of w n.
        surface_normals: f32 [C, H, W, 3], N, of length 1 or 0.
        weight: A factor of the gradients.

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
    slope = weight / max(alpha.numel(), 1)
    given = {"alpha": alpha, "normals": normals, "surface_normals": surface_normals}
    engine = engine_for(alpha.device)
    if isinstance(engine, CpuEngine) and alpha.numel():
        arrays = {name: tensor.detach().contiguous() for name, tensor in given.items()}
        found, value = (
            {name: torch.empty_like(array) for name, array in arrays.items()},
            alpha.new_empty((), dtype=torch.float64),
        )
        to = {f"d_{name}": gradient for name, gradient in found.items()}
        engine.run("normal_loss", **arrays, **to, value=value, slope=slope)
        return NormalLoss(value, found)
    known = (surface_normals != 0).any(dim=-1)
    sums = torch.where(known, alpha - (normals * surface_normals).sum(dim=-1), 0.0)
    gradients = {
        "alpha": known.to(torch.float32) * slope,
        "normals": -surface_normals * slope,
        "surface_normals": torch.where(known[..., None], -normals * slope, 0.0),
    }
    return NormalLoss(sums.sum(dtype=torch.float64) / max(alpha.numel(), 1), gradients)


def _compared(name: str, plane: torch.Tensor, target: torch.Tensor, weight: float, *, known: bool) -> PlaneLoss:
    _check(name, plane, target)
    sums = torch.empty(len(plane), _native.PLANE_VALUES, dtype=torch.float64, device=plane.device)
    gradient = torch.empty(plane.shape, dtype=torch.float32, device=plane.device)
    arrays = {"plane": plane.detach().contiguous(), "target": target.detach().contiguous()}
    times = engine_for(plane.device).run(
        "plane_loss", **arrays, gradient=gradient, values=sums, known=known, weight=float(weight)
    )
    return PlaneLoss(sums, gradient, Stages([times]))


def _check(name: str, plane: torch.Tensor, target: torch.Tensor) -> None:
    for argument, tensor in ((name, plane), ("target", target)):
        fits = isinstance(tensor, torch.Tensor) and tensor.dim() == 3 and tensor.dtype == torch.float32
        if not fits or tensor.shape != plane.shape:
            expected = f"a float32 tensor of shape {list(plane.shape) if argument == 'target' else '[C, H, W]'}"
            raise ArgumentError(argument, expected, f"{getattr(tensor, 'shape', type(tensor).__name__)}")


def mean_term(values: torch.Tensor, weight: float, gradient: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the mean of a parameter's values, and adds the gradient of `weight` times the mean to `gradient`.

    Args:
        values: f32, contiguous, at least one.
        weight: The weight of the mean in the loss.
        gradient: f32, shaped as `values`, contiguous; updated in place. None: not needed.

    Returns:
        f64 [], the mean, summed in float64, on the device.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_tensor("values", values, (torch.float32,), values.shape, None, in_place=True)
    check(values.numel() > 0, "values", "at least one", "none")
    if gradient is not None:
        check_tensor("gradient", gradient, (torch.float32,), values.shape, values.device, in_place=True)
    mean = torch.empty((), dtype=torch.float64, device=values.device)
    engine_for(values.device).run("mean", weight / values.numel(), mean, values=values, gradient=gradient)
    return mean
