"""The camera geometry of exact semantics in float64 torch, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from support.spheres.pulsar_camera import camera_vectors


@dataclass(frozen=True)
class View:
    """Spheres and pixels of one camera, in a frame that depends on the camera.

    A perspective view has rays [H, W, 3] of length one; an orthogonal one has film points [H, W, 2] and the
    frame of the camera.
    """

    centres: Tensor
    forward: Tensor
    rays: Tensor | None
    film: Tensor | None
    focal_length: Tensor


def pulsar_view(
    positions: Tensor,
    parameters: Tensor,
    width: int,
    height: int,
    *,
    orthogonal: bool = False,
    right_handed: bool = False,
    first_r_then_t: bool = False,
) -> View:
    """Pulsar's camera. The principal point shifts the film continuously: pixel x has the ray of x + shift."""
    vectors = camera_vectors(
        parameters, width, height, orthogonal=orthogonal, right_handed=right_handed, first_r_then_t=first_r_then_t
    )
    step_x, step_y = vectors.pixel_vec_x, vectors.pixel_vec_y
    normal = torch.linalg.cross(step_y, step_x)
    normal = normal / torch.linalg.vector_norm(normal) * (-1 if right_handed else 1)
    offsets = positions - vectors.eye
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64), torch.arange(width, dtype=torch.float64), indexing="ij"
    )
    x, y = (x + vectors.principal_point[0])[..., None], (y + vectors.principal_point[1])[..., None]
    if orthogonal:
        pixel = torch.linalg.vector_norm(step_x)
        axes = torch.stack([step_x / pixel, step_y / torch.linalg.vector_norm(step_y), normal])
        film = torch.cat([x - width / 2, y - height / 2], -1) * pixel
        forward = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
        # The focal length of an orthogonal view is 0 by definition, and has no gradient.
        return View(offsets @ axes.T, forward, None, film, vectors.focal_length.detach())
    rays = vectors.pixel_0_0_center - vectors.eye + x * step_x + y * step_y
    rays = rays / torch.linalg.vector_norm(rays, dim=-1, keepdim=True)
    return View(offsets, normal, rays, None, vectors.focal_length)


@dataclass(frozen=True)
class OpenCV:
    """An OpenCV camera: x_camera = rotation @ x_world + translation, pixel centres at halves."""

    rotation: Tensor
    translation: Tensor
    # fx, fy, cx, cy in pixels.
    intrinsics: Tensor


def opencv_view(positions: Tensor, camera: OpenCV, width: int, height: int) -> View:
    """OpenCV's camera; there is no film in front of the eye, so nothing is nearer than the eye itself."""
    fx, fy, cx, cy = camera.intrinsics
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) + 0.5, torch.arange(width, dtype=torch.float64) + 0.5, indexing="ij"
    )
    rays = torch.stack([(x - cx) / fx, (y - cy) / fy, torch.ones_like(x)], -1)
    rays = rays / torch.linalg.vector_norm(rays, dim=-1, keepdim=True)
    centres = positions @ camera.rotation.T + camera.translation
    forward = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    return View(centres, forward, rays, None, torch.zeros((), dtype=torch.float64))


def nearest_depth(min_depth: float, views: Sequence[View]) -> Tensor:
    """The near limit of a call: 0 means slightly more than the largest focal length of its cameras."""
    if min_depth:
        return torch.tensor(min_depth, dtype=torch.float64)
    return torch.stack([view.focal_length for view in views]).amax() + 2e-6
