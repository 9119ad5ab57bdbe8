"""Exposure: an affine transform of the colours of each view, which models automatic exposure and white balance."""

from __future__ import annotations

import torch

from lumigrad.kernels.checks import check
from lumigrad.kernels.errors import ArgumentError

CHANNELS = 3


def apply_exposure(image: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Applies each view's exposure to its colours: `matrix[:, :3] @ color + matrix[:, 3]`.

    Args:
        image: f32 [C, H, W, 3].
        matrices: f32 [C, 3, 4].

    Returns:
        f32 [C, H, W, 3].

    Raises:
        ArgumentError: An argument is invalid.
    """
    _check(image, matrices)
    rows = image.reshape(len(image), -1, CHANNELS)
    turned = torch.baddbmm(matrices[:, None, :, 3], rows, matrices[:, :, :3].transpose(1, 2))
    return turned.reshape(image.shape)


def exposure_gradient(
    image: torch.Tensor, matrices: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Backpropagates the gradient of exposed colours to the colours and to the exposures.

    Args:
        image: f32 [C, H, W, 3], before the exposure.
        matrices: f32 [C, 3, 4].
        gradient: f32 [C, H, W, 3], dL/d exposed colours.

    Returns:
        dL/d image, f32 [C, H, W, 3], and dL/d matrices, f32 [C, 3, 4], summed in float64 on the CPU.

    Raises:
        ArgumentError: An argument is invalid.
    """
    _check(image, matrices)
    fits = isinstance(gradient, torch.Tensor) and gradient.shape == image.shape
    check(fits, "gradient", f"a tensor of shape {list(image.shape)}", getattr(gradient, "shape", gradient))
    views = len(image)
    rows, upstream = image.reshape(views, -1, CHANNELS), gradient.reshape(views, -1, CHANNELS)
    of_image = torch.bmm(upstream, matrices[:, :, :3]).reshape(image.shape)
    ones = torch.ones(1, 1, 1, device=image.device).expand(views, rows.shape[1], 1)
    extended = torch.cat([rows, ones], dim=2)
    of_matrices = torch.bmm(upstream.double().transpose(1, 2), extended.double())
    return of_image, of_matrices.float()


def _check(image: torch.Tensor, matrices: torch.Tensor) -> None:
    shaped = isinstance(image, torch.Tensor) and image.dim() == 4 and image.shape[3] == CHANNELS
    if not shaped or image.dtype != torch.float32:
        raise ArgumentError("image", "a float32 tensor of shape [C, H, W, 3]", f"{getattr(image, 'shape', image)}")
    shape = (len(image), CHANNELS, 4)
    fits = isinstance(matrices, torch.Tensor) and matrices.shape == shape and matrices.dtype == torch.float32
    check(fits, "matrices", f"a float32 tensor of shape {list(shape)}", f"{getattr(matrices, 'shape', matrices)}")
