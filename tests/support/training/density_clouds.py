"""Random Gaussians and spheres with optimiser moments, for tests of density control."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lumigrad.kernels.density import Parameters


def gaussians(count: int, *, seed: int = 0, device: torch.device | None = None, coefficients: int = 4) -> Parameters:
    """Raw parameters with Adam's moments; quaternions of any length, opacities from nearly 0 to nearly 1."""
    random = torch.Generator().manual_seed(seed)
    tensors = {
        "means": torch.randn(count, 3, generator=random),
        "quats": torch.randn(count, 4, generator=random),
        "scales": torch.randn(count, 3, generator=random) - 4.0,
        "opacities": 4.0 * torch.randn(count, generator=random),
        "sh": torch.randn(count, coefficients, 3, generator=random),
    }
    return Parameters(_moved(tensors, device), _moments(tensors, random, device))


def spheres(count: int, *, seed: int = 0, device: torch.device | None = None, opacities: bool = True) -> Parameters:
    """Positions, colours, radii and perhaps opacities, with Adam's moments."""
    random = torch.Generator().manual_seed(seed)
    tensors = {
        "positions": torch.randn(count, 3, generator=random),
        "radii": torch.rand(count, generator=random) * 0.1,
        "colors": torch.rand(count, 3, generator=random),
    }
    if opacities:
        tensors["opacities"] = torch.rand(count, generator=random) ** 4
    return Parameters(_moved(tensors, device), _moments(tensors, random, device))


def copy_of(parameters: Parameters) -> Parameters:
    return Parameters(
        {name: tensor.clone() for name, tensor in parameters.tensors.items()},
        {name: tuple(moment.clone() for moment in moments) for name, moments in parameters.moments.items()},
    )


def _moved(tensors: Mapping[str, Tensor], device: torch.device | None) -> dict[str, Tensor]:
    return {name: tensor.to(device or "cpu") for name, tensor in tensors.items()}


def _moments(
    tensors: Mapping[str, Tensor], random: torch.Generator, device: torch.device | None
) -> dict[str, tuple[Tensor, Tensor]]:
    def pair(tensor: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (torch.randn(tensor.shape, generator=random) for _ in range(2))
        return first.to(device or "cpu"), (second**2).to(device or "cpu")

    return {name: pair(tensor) for name, tensor in tensors.items()}
