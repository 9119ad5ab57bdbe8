"""Normals of the surface that a depth image shows, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.camera_sources import OpenCVSource

LEAST_ALPHA = 1e-10


def expected_depth(depth: Tensor, transmittance: Tensor) -> Tensor:
    """Expected depths [V, H, W], as the engine computes them."""
    return depth / (1.0 - transmittance).clamp_min(LEAST_ALPHA)


def surface_normals(depth: Tensor, cameras: Sequence[Camera]) -> Tensor:
    """Normals [V, H, W, 3] of the surface at a depth [V, H, W] along z, world frame; 0 at the image's border.

    Normals are cross products of the differences between the points at a pixel's neighbours, from top to bottom and
    from left to right (section 5 of "2D Gaussian Splatting for Geometrically Accurate Radiance Fields"), and point to
    the camera. The cameras are pinholes.
    """
    parameters = _parameters(cameras, depth)
    if depth.device.type != "cpu":
        return _normals(depth, *parameters)
    normals = torch.empty((*depth.shape, 3), dtype=torch.float32, device="cpu")
    _native.training_surface_normals(**_arrays(depth, *parameters), normals=normals)
    return normals


@dataclass(frozen=True)
class SurfaceGradient:
    """Gradients of the depth [V, H, W], and of the cameras' rotations [V, 3, 3] and intrinsics [V, 4]."""

    depth: Tensor
    rotation: Tensor
    intrinsics: Tensor


def surface_backward(depth: Tensor, cameras: Sequence[Camera], gradient: Tensor) -> SurfaceGradient:
    """Backpropagates the gradient of the normals [V, H, W, 3] through `surface_normals`."""
    if depth.device.type == "cpu":
        to_depth = torch.empty_like(depth)
        sums = torch.empty(len(depth), _native.SURFACE_SUMS, dtype=torch.float64, device="cpu")
        arrays = _arrays(depth, *_parameters(cameras, depth))
        _native.training_surface_backward(**arrays, d_normals=gradient.contiguous(), to_depth=to_depth, sums=sums)
        return SurfaceGradient(to_depth, sums[:, :9].view(-1, 3, 3), sums[:, 9:])
    inputs = [tensor.detach().requires_grad_() for tensor in (depth, *_parameters(cameras, depth))]
    with torch.enable_grad():
        normals = _normals(*inputs)
    return SurfaceGradient(*torch.autograd.grad(normals, inputs, gradient, allow_unused=False))


def _arrays(depth: Tensor, rotations: Tensor, intrinsics: Tensor) -> dict[str, Tensor]:
    return {"depth": depth.detach().contiguous(), "rotations": rotations.contiguous(), "intrinsics": intrinsics}


def _parameters(cameras: Sequence[Camera], like: Tensor) -> tuple[Tensor, Tensor]:
    sources = [camera.source for camera in cameras if isinstance(camera.source, OpenCVSource)]
    rotations = torch.stack([torch.from_numpy(source.rotation) for source in sources])
    intrinsics = torch.tensor([source.intrinsics for source in sources], dtype=torch.float64, device="cpu")
    return rotations.to(like), intrinsics.to(like)


def _normals(depth: Tensor, rotations: Tensor, intrinsics: Tensor) -> Tensor:
    height, width = depth.shape[1:]
    if height < 3 or width < 3:
        return depth.new_zeros((*depth.shape, 3)) + 0.0 * (depth.sum() + rotations.sum() + intrinsics.sum())
    fx, fy, cx, cy = intrinsics.unbind(-1)
    across = torch.arange(width, device=depth.device, dtype=depth.dtype) + 0.5
    down = torch.arange(height, device=depth.device, dtype=depth.dtype) + 0.5
    u = (across - cx[:, None]) / fx[:, None]
    v = (down - cy[:, None]) / fy[:, None]
    points = torch.stack([depth * u[:, None, :], depth * v[:, :, None], depth], 1)
    from_above = points[:, :, 2:, 1:-1] - points[:, :, :-2, 1:-1]
    from_left = points[:, :, 1:-1, 2:] - points[:, :, 1:-1, :-2]
    normals = normalize(torch.linalg.cross(from_above, from_left, dim=1), dim=1, eps=1e-12)
    return pad(torch.einsum("vij,viyx->vyxj", rotations, normals), (0, 0, 1, 1, 1, 1))
