"""Pulsar's camera parameters as rays, in differentiable torch: spec of the original, section 3."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

VECTORS = ("eye", "pixel_0_0_center", "pixel_vec_x", "pixel_vec_y")


@dataclass(frozen=True)
class CameraVectors:
    """The three-vectors derived from camera parameters, in the world frame."""

    eye: Tensor
    pixel_0_0_center: Tensor
    pixel_vec_x: Tensor
    pixel_vec_y: Tensor
    focal_length: Tensor
    # Pixels, (x, y).
    principal_point: Tensor


def axis_angle_matrix(vector: Tensor) -> Tensor:
    """Rotation about `vector` by its length, by way of the unit quaternion (smooth at zero)."""
    angle = torch.linalg.vector_norm(vector)
    w = torch.cos(angle / 2)
    x, y, z = vector * 0.5 * torch.sinc(angle * 0.5 / math.pi)
    # Not exactly 2 in float32; the original divides too, and the last bit can change a rectangle.
    two = 2 / (w * w + x * x + y * y + z * z)
    rows = [
        [1 - two * (y * y + z * z), two * (x * y - z * w), two * (x * z + y * w)],
        [two * (x * y + z * w), 1 - two * (x * x + z * z), two * (y * z - x * w)],
        [two * (x * z - y * w), two * (y * z + x * w), 1 - two * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row) for row in rows])


def six_d_matrix(vectors: Tensor) -> Tensor:
    """Gram-Schmidt of two three-vectors; the results are the rows."""
    first = vectors[:3] / torch.linalg.vector_norm(vectors[:3])
    second = vectors[3:] - (first * vectors[3:]).sum() * first
    second = second / torch.linalg.vector_norm(second)
    return torch.stack([first, second, torch.linalg.cross(first, second)])


def rotation_of(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation, and the parameters after it: focal length, sensor width, principal point."""
    if len(parameters) in (8, 10):
        return axis_angle_matrix(parameters[3:6]), parameters[6:]
    if len(parameters) in (11, 13):
        return six_d_matrix(parameters[3:9]), parameters[9:]
    raise ValueError(f"camera parameters: expected 8, 10, 11 or 13 values, got {len(parameters)}")


def camera_vectors(
    parameters: Tensor, width: int, height: int, *, orthogonal: bool, right_handed: bool, first_r_then_t: bool
) -> CameraVectors:
    """Section 3.2, in the number type of `parameters` and differentiable."""
    rotation, rest = rotation_of(parameters)
    focal_length, sensor_width = rest[0], rest[1]
    position = rotation @ parameters[:3] if first_r_then_t else parameters[:3]
    axis_x, axis_y, axis_z = rotation[:, 0], -rotation[:, 1], rotation[:, 2]
    if right_handed:
        axis_z = -axis_z
    pixel = sensor_width / width
    centre = position if orthogonal else position + focal_length * axis_z
    corner = centre - axis_x * (sensor_width / 2) - axis_y * (height * pixel / 2)
    return CameraVectors(
        eye=position,
        pixel_0_0_center=corner + axis_x * (pixel / 2) + axis_y * (pixel / 2),
        pixel_vec_x=axis_x * pixel,
        pixel_vec_y=axis_y * pixel,
        focal_length=focal_length,
        principal_point=rest[2:] if len(rest) > 2 else torch.zeros_like(rest[:2]),
    )
