"""Exposure: an affine transform of the colours of each view, which models automatic exposure and white balance."""

from __future__ import annotations

import torch

from lumigrad.kernels.checks import check
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.training.engine import engine_for
from lumigrad.kernels.training.tensors import check_tensor

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
    exposed = torch.empty(image.shape, dtype=torch.float32, device=image.device)
    arrays = {"image": image.detach().contiguous(), "matrices": matrices.detach().contiguous()}
    engine_for(image.device).run("expose", **arrays, exposed=exposed)
    return exposed


def exposure_gradient(
    image: torch.Tensor, matrices: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Backpropagates the gradient of exposed colours to the colours and to the exposures.

    Args:
        image: f32 [C, H, W, 3], before the exposure.
        matrices: f32 [C, 3, 4].
        gradient: f32 [C, H, W, 3], dL/d exposed colours.

    Returns:
        dL/d image, f32 [C, H, W, 3], and dL/d matrices, f32 [C, 3, 4], summed in float64.

    Raises:
        ArgumentError: An argument is invalid.
    """
    _check(image, matrices)
    fits = isinstance(gradient, torch.Tensor) and gradient.shape == image.shape
    check(fits, "gradient", f"a tensor of shape {list(image.shape)}", getattr(gradient, "shape", gradient))
    of_image, of_matrices = gradient.detach().clone(memory_format=torch.contiguous_format), torch.empty_like(matrices)
    arrays = {"image": image.detach().contiguous(), "matrices": matrices.detach().contiguous()}
    engine_for(image.device).run("expose_backward", **arrays, gradient=of_image, to_matrices=of_matrices)
    return of_image, of_matrices


def center_exposures(matrices: torch.Tensor) -> None:
    """Adds one matrix to the exposures of all views, so that their mean is the identity.

    Args:
        matrices: f32 [C, 3, 4], contiguous; updated in place.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_tensor("matrices", matrices, (torch.float32,), (None, CHANNELS, 4), None, in_place=True)
    engine_for(matrices.device).run("center_exposures", matrices=matrices)


def _check(image: torch.Tensor, matrices: torch.Tensor) -> None:
    shaped = isinstance(image, torch.Tensor) and image.dim() == 4 and image.shape[3] == CHANNELS
    if not shaped or image.dtype != torch.float32:
        raise ArgumentError("image", "a float32 tensor of shape [C, H, W, 3]", f"{getattr(image, 'shape', image)}")
    shape = (len(image), CHANNELS, 4)
    fits = isinstance(matrices, torch.Tensor) and matrices.shape == shape and matrices.dtype == torch.float32
    check(fits, "matrices", f"a float32 tensor of shape {list(shape)}", f"{getattr(matrices, 'shape', matrices)}")
