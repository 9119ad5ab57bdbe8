"""Updates of camera poses."""

from __future__ import annotations

import torch

from lumigrad.kernels.errors import ArgumentError

# Below this squared angle, radians squared, the truncated series are exact in double precision.
_SMALL = 1e-8


def apply_pose_update(world_to_camera: torch.Tensor, xi: torch.Tensor) -> torch.Tensor:
    """Multiplies world-to-camera matrices by exp(xi) from the left.

    exp is the exponential map of SE(3): for xi = (rho, phi) the rotation follows from phi by Rodrigues' formula, and
    the translation is the left Jacobian of phi times rho. The gradient "camera_pose" of a backward pass is the
    derivative with respect to xi at 0.

    Args:
        world_to_camera: f64 [C, 4, 4].
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
    rho, phi = xi[:, :3], xi[:, 3:]
    squares = (phi * phi).sum(dim=1)
    angles = squares.sqrt()
    small = squares < _SMALL
    safe = torch.where(small, 1.0, angles)
    # sin x / x, (1 - cos x) / x^2, (x - sin x) / x^3
    sine = torch.where(small, 1 - squares / 6, safe.sin() / safe)
    versine = torch.where(small, 0.5 - squares / 24, 2 * ((safe / 2).sin() / safe) ** 2)
    rest = torch.where(small, 1 / 6 - squares / 120, (safe - safe.sin()) / safe**3)
    cross = _cross(phi)
    square = cross @ cross
    one = torch.eye(3, dtype=torch.float64, device=xi.device).expand(count, 3, 3)
    rotation = one + sine[:, None, None] * cross + versine[:, None, None] * square
    jacobian = one + versine[:, None, None] * cross + rest[:, None, None] * square
    motion = torch.eye(4, dtype=torch.float64, device=xi.device).repeat(count, 1, 1)
    motion[:, :3, :3] = rotation
    motion[:, :3, 3] = (jacobian @ rho[:, :, None])[:, :, 0]
    return motion @ world_to_camera


def _cross(phi: torch.Tensor) -> torch.Tensor:
    matrices = phi.new_zeros(len(phi), 3, 3)
    x, y, z = phi.unbind(dim=1)
    matrices[:, 2, 1], matrices[:, 1, 2] = x, -x
    matrices[:, 0, 2], matrices[:, 2, 0] = y, -y
    matrices[:, 1, 0], matrices[:, 0, 1] = z, -z
    return matrices
