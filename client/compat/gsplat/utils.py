"""gsplat's small functions beside its rasterizers (`gsplat.utils`) in plain torch: depths, rotations, files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch.nn.functional import normalize, pad

from lumigrad.client.base.arrays import check_shape
from lumigrad.client.compat.gsplat.exporter import export_splats
from lumigrad.client.compat.gsplat.options import gsplat_refusals
from lumigrad.client.torch.remote import full_precision

# The constant spherical harmonic.
_CONSTANT = 0.5 / math.sqrt(math.pi)


def save_ply(splats: Mapping[str, torch.Tensor], dir: str | PathLike[str], colors: torch.Tensor | None = None) -> None:
    """Writes a scene as a PLY file; deprecated in favour of `export_splats`, in gsplat too.

    Args:
        splats: "means", "scales", "quats", "opacities", "sh0" and "shN", as `export_splats` takes them.
        dir: the file to write.
        colors: [N, 3] colours in 0 to 1, in place of all harmonics.

    Raises:
        GsplatArgumentError: a shape is invalid.

    Example:
        save_ply(splats, "scene.ply")
    """
    warnings.warn("save_ply is deprecated; export_splats writes the same", DeprecationWarning, stacklevel=2)
    tensors = dict(splats)
    if colors is not None:
        with gsplat_refusals():
            check_shape("colors", colors.shape, (len(tensors["means"]), 3))
        tensors["sh0"] = (colors[:, None] - 0.5) / _CONSTANT
        tensors["shN"] = tensors["sh0"][:, :0]
    means, scales, quats, opacities, sh0, shn = (
        tensors[name] for name in ("means", "scales", "quats", "opacities", "sh0", "shN")
    )
    export_splats(means, scales, quats, opacities, sh0, shn, save_to=dir)


@full_precision
def normalized_quat_to_rotmat(quat: torch.Tensor) -> torch.Tensor:
    """Returns rotation matrices [.., 3, 3].

    Args:
        quat: [.., 4] rotations (w, x, y, z) of length 1.

    Raises:
        GsplatArgumentError: the shape is invalid.

    Example:
        turns = normalized_quat_to_rotmat(torch.nn.functional.normalize(quats, dim=-1))
    """
    with gsplat_refusals():
        check_shape("quat", quat.shape, (..., 4))
    real, axis = quat[..., :1, None], quat[..., 1:]
    zero = torch.zeros_like(quat[..., 0])
    x, y, z = axis.unbind(-1)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(*quat.shape[:-1], 3, 3)
    return torch.eye(3, dtype=quat.dtype, device=quat.device) + 2 * (real * cross + cross @ cross)


def log_transform(x: torch.Tensor) -> torch.Tensor:
    """Returns the logarithm of 1 + abs(x), with the sign of x."""
    return x.sign() * x.abs().log1p()


def inverse_log_transform(y: torch.Tensor) -> torch.Tensor:
    """Returns the x of which y is the `log_transform`."""
    return y.sign() * y.abs().expm1()


@full_precision
def depth_to_points(
    depths: torch.Tensor, camtoworlds: torch.Tensor, Ks: torch.Tensor, z_depth: bool = True
) -> torch.Tensor:
    """Returns the points [.., H, W, 3] at the depths of pixels, world frame.

    Args:
        depths: [.., H, W, 1].
        camtoworlds: [.., 4, 4] camera to world.
        Ks: [.., 3, 3] intrinsics, pixels.
        z_depth: False: depths are distances from the camera, in the world's units even if camtoworlds scale.

    Raises:
        GsplatArgumentError: a shape is invalid.

    Example:
        points = depth_to_points(depths, torch.linalg.inv(viewmats), Ks)
    """
    with gsplat_refusals():
        check_shape("depths", depths.shape, (..., "H", "W", 1))
        check_shape("camtoworlds", camtoworlds.shape, (*depths.shape[:-3], 4, 4))
        check_shape("Ks", Ks.shape, (*depths.shape[:-3], 3, 3))
    height, width = depths.shape[-3:-1]
    like: dict[str, Any] = {"dtype": depths.dtype, "device": depths.device}
    rows, columns = torch.meshgrid(torch.arange(height, **like), torch.arange(width, **like), indexing="ij")
    places = torch.stack([columns, rows], -1) + 0.5
    centres, focal = Ks[..., None, None, :2, 2], Ks[..., :2, :2].diagonal(dim1=-2, dim2=-1)[..., None, None, :]
    rays = pad((places - centres) / focal, (0, 1), value=1.0)
    turns, origins = camtoworlds[..., None, None, :3, :3], camtoworlds[..., None, None, :3, 3]
    directions = (turns @ rays[..., None])[..., 0]
    if not z_depth:
        directions = normalize(directions, dim=-1)
    return origins + depths * directions


def depth_to_normal(
    depths: torch.Tensor, camtoworlds: torch.Tensor, Ks: torch.Tensor, z_depth: bool = True
) -> torch.Tensor:
    """Returns the normals [.., H, W, 3] of the surface that depths describe, world frame; 0 in pixels at the edges.

    They point to the camera. The arguments are those of `depth_to_points`.

    Raises:
        GsplatArgumentError: a shape is invalid.

    Example:
        normals = depth_to_normal(depths, torch.linalg.inv(viewmats), Ks)
    """
    points = depth_to_points(depths, camtoworlds, Ks, z_depth)
    down = points[..., 2:, 1:-1, :] - points[..., :-2, 1:-1, :]
    right = points[..., 1:-1, 2:, :] - points[..., 1:-1, :-2, :]
    normals = normalize(torch.linalg.cross(down, right), dim=-1)
    return pad(normals, (0, 0, 1, 1, 1, 1))


def get_projection_matrix(znear: float, zfar: float, fovX: float, fovY: float, device: Any = None) -> torch.Tensor:
    """Returns the matrix [4, 4] that projects points in front of a camera, z forward, to depths of 0 to 1.

    Args:
        znear: least depth, which becomes 0.
        zfar: largest depth, which becomes 1.
        fovX: horizontal angle of view, radians.
        fovY: vertical angle of view, radians.
        device: where the matrix goes; None: to the GPU, as in the original, or to the CPU where there is none.

    Example:
        projection = get_projection_matrix(0.01, 100.0, 1.2, 0.9, device="cpu")
    """
    far = zfar / (zfar - znear)
    diagonal = [1 / math.tan(fovX / 2), 1 / math.tan(fovY / 2), far, 0.0]
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    matrix = torch.diag(torch.tensor(diagonal, device=device))
    matrix[2, 3], matrix[3, 2] = -znear * far, 1.0
    return matrix
