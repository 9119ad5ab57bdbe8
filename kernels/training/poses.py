"""Updates of camera poses."""

from __future__ import annotations

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError


def apply_pose_update(world_to_camera: torch.Tensor, xi: torch.Tensor) -> torch.Tensor:
    """Multiplies world-to-camera matrices by exp(xi) from the left.

    exp is the exponential map of SE(3): for xi = (rho, phi) the rotation follows from phi by Rodrigues' formula, and
    the translation is the left Jacobian of phi times rho. The gradient "camera_pose" of a backward pass is the
    derivative with respect to xi at 0.

    Args:
        world_to_camera: f64 [C, 4, 4], the last rows 0 0 0 1.
        xi: f64 [C, 6]; rho in scene units, phi in radians.

    Returns:
        f64 [C, 4, 4].

    Raises:
        ArgumentError: An argument is invalid.
    """
    matrices = isinstance(world_to_camera, torch.Tensor) and world_to_camera.dtype == torch.float64
    if not matrices or world_to_camera.dim() != 3 or world_to_camera.shape[1:] != (4, 4):
        raise ArgumentError("world_to_camera", "a float64 tensor of shape [C, 4, 4]", f"{world_to_camera}")
    count = len(world_to_camera)
    if not isinstance(xi, torch.Tensor) or xi.dtype != torch.float64 or xi.shape != (count, 6):
        raise ArgumentError("xi", f"a float64 tensor of shape [{count}, 6]", f"{xi}")
    moved = world_to_camera.detach().cpu().clone(memory_format=torch.contiguous_format)
    _native.move_poses(moved.numpy(), xi.detach().cpu().contiguous().numpy())
    return moved.to(world_to_camera.device)
