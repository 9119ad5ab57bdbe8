"""Checks of the tensors of a query."""

from __future__ import annotations

import torch

from lumigrad.kernels.checks import finite_range
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes.pose import MAX_COORDINATE
from lumigrad.kernels.meshes.world import World

# The largest output has ten floats per row, which 32-bit integers index.
MAX_ROWS = 2**27


def check_spheres(spheres: torch.Tensor, world: World) -> torch.Tensor:
    """Checks spheres; returns them as a contiguous, detached tensor [B, H, S, 4].

    Raises:
        ArgumentError: The tensor has the wrong shape or type, or is not on the world's device.
    """
    expected = "a float32 tensor of shape [B, H, S, 4]: centre and radius, metres"
    if not isinstance(spheres, torch.Tensor):
        raise ArgumentError("spheres", expected, type(spheres).__name__)
    if spheres.dim() != 4 or spheres.shape[3] != 4 or spheres.dtype != torch.float32:
        actual = f"{str(spheres.dtype).removeprefix('torch.')} of shape {list(spheres.shape)}"
        raise ArgumentError("spheres", expected, actual)
    if spheres.numel() // 4 > MAX_ROWS:
        raise ArgumentError("spheres", f"at most {MAX_ROWS} spheres in a call", f"shape {list(spheres.shape)}")
    device = world.device
    if device is not None and spheres.device != device:
        raise ArgumentError("spheres", f"a tensor on {device}, where the world is", f"one on {spheres.device}")
    return spheres.detach().contiguous()


def check_environments(environments: torch.Tensor | None, spheres: torch.Tensor) -> torch.Tensor | None:
    """Checks environments [B] on the device of the spheres; None, which means environment 0, stays None.

    Raises:
        ArgumentError: The tensor has the wrong shape or type, or is on another device.
    """
    if environments is None:
        return None
    expected = f"an int32 tensor of shape [{spheres.shape[0]}], one environment for each of the {spheres.shape[0]} rows"
    if not isinstance(environments, torch.Tensor):
        raise ArgumentError("environments", expected, type(environments).__name__)
    if environments.dtype != torch.int32 or environments.shape != spheres.shape[:1]:
        actual = f"{str(environments.dtype).removeprefix('torch.')} of shape {list(environments.shape)}"
        raise ArgumentError("environments", expected, actual)
    if environments.device != spheres.device:
        actual = f"one on {environments.device}"
        raise ArgumentError("environments", f"a tensor on {spheres.device}, where spheres are", actual)
    return environments.contiguous()


def check_values(spheres: torch.Tensor, environments: torch.Tensor | None, world: World) -> None:
    """Checks the values of a query: one pass over them, which on CUDA waits for the device.

    Raises:
        ArgumentError: A sphere (even if it is off) is not finite or too far away, or an environment does not exist.
    """
    if spheres.numel() > 0:
        low, high = finite_range("spheres", spheres)
        if max(-low, high) > MAX_COORDINATE:
            expected = f"coordinates and radii of at most {MAX_COORDINATE:g} m"
            raise ArgumentError("spheres", expected, f"values from {low:g} to {high:g}")
    if environments is not None and environments.numel() > 0:
        first, last = (int(value) for value in torch.aminmax(environments))
        if first < 0 or last >= world.environments:
            expected = f"0 to {world.environments - 1}, the environments of the world"
            raise ArgumentError("environments", expected, f"values from {first} to {last}")
