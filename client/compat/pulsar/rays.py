"""Converts camera parameters to the vectors that span the picture, differentiably."""

from __future__ import annotations

import torch

from lumigrad.client.compat.pulsar.checks import check_cam_params
from lumigrad.client.torch.remote import full_precision

Vectors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@full_precision
def camera_vectors(
    cam_params: torch.Tensor, width: int, height: int, orthogonal: bool, right_handed: bool, first_r_then_t: bool
) -> Vectors:
    """Returns the camera in world coordinates, scene units.

    Args:
        cam_params: [B, 8 | 10 | 11 | 13] or without B, as `Renderer.forward` takes them.
        width: picture width, pixels.
        height: picture height, pixels.
        orthogonal: parallel rays.
        right_handed: the camera looks along -z instead of +z.
        first_r_then_t: rotate the camera's position too.

    Returns:
        The eye [B, 3], the centre of the first pixel [B, 3], the steps to the next pixel in x [B, 3] and in y [B, 3],
        the focal length [B, 1], and the offset of the principal point, pixels, int32 [B, 2]; without B if cam_params
        had none.
    """
    check_cam_params(cam_params)
    count = 6 if cam_params.shape[-1] in (11, 13) else 3
    position, turn, rest = cam_params[..., :3], cam_params[..., 3 : 3 + count], cam_params[..., 3 + count :]
    rotation = _from_six(turn) if count == 6 else _from_axis_angle(turn)
    focal, sensor = rest[..., :1], rest[..., 1:2]
    eye = (rotation @ position[..., None])[..., 0] if first_r_then_t else position
    x, y, z = rotation[..., 0], -rotation[..., 1], rotation[..., 2]
    if right_handed:
        z = -z
    pixel = sensor / width
    centre = eye if orthogonal else eye + focal * z
    first = centre - x * (sensor - pixel) / 2 - y * (pixel * (height - 1)) / 2
    offset = rest[..., 2:] if rest.shape[-1] == 4 else torch.zeros_like(rest[..., :2])
    return eye, first, x * pixel, y * pixel, focal, offset.detach().to(torch.int32)


def _from_six(vectors: torch.Tensor) -> torch.Tensor:
    """Returns rotations from two vectors [.., 6]: their rows are both, orthonormalised, and their cross product."""
    normalize = torch.nn.functional.normalize
    first = normalize(vectors[..., :3], dim=-1)
    second = vectors[..., 3:]
    second = normalize(second - (first * second).sum(-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-2)


def _from_axis_angle(vectors: torch.Tensor) -> torch.Tensor:
    """Returns the rotations about the axes [.., 3] by their lengths, radians."""
    x, y, z = vectors.unbind(-1)
    zero = torch.zeros_like(x)
    generator = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1)
    rotation: torch.Tensor = torch.linalg.matrix_exp(generator.reshape(*vectors.shape[:-1], 3, 3))
    return rotation
