"""Rotations as camera parameters: axis-angle and six-D, their matrices and gradients."""

from __future__ import annotations

import math

import numpy as np
import torch

Array = np.ndarray


def matrix(parameters: Array) -> Array:
    """Rotation matrix [3, 3] of 3 (axis-angle, radians) or 6 (six-D, Zhou et al. 2019) values, in their precision.

    float32 uses torch with the same operations as PyTorch3D, since with "compat" semantics the last bits of the camera
    decide which pixels a small sphere covers.
    """
    if len(parameters) == 3:
        result = _axis_angle(torch.from_numpy(np.ascontiguousarray(parameters)))
    else:
        result = _six_d(torch.from_numpy(np.ascontiguousarray(parameters)))
    matrix: Array = result.numpy()
    return matrix


def is_rotation(parameters: Array) -> bool:
    """Whether `matrix` returns a rotation: six-D vectors must be neither 0 nor parallel."""
    if len(parameters) == 3:
        return True
    first, second = np.asarray(parameters, np.float64).reshape(2, 3)
    length, other, area = (float(np.linalg.norm(each)) for each in (first, second, np.cross(first, second)))
    return length > _LEAST_LENGTH and area > length * max(_LEAST_LENGTH, _LEAST_SINE * other)


# The least length that torch normalises, and the least sine between six-D vectors: below it the rounding of float32
# decides the rotation.
_LEAST_LENGTH, _LEAST_SINE = 1e-12, 1e-6


def _axis_angle(vector: torch.Tensor) -> torch.Tensor:
    angle = torch.norm(vector[None], p=2, dim=-1, keepdim=True)
    scaled = vector[None] * (0.5 * torch.sinc(angle * 0.5 / torch.pi))
    quaternion = torch.cat([torch.cos(angle * 0.5), scaled], dim=-1)
    r, i, j, k = torch.unbind(quaternion, dim=-1)
    two = 2.0 / (quaternion * quaternion).sum(-1)
    rows = (
        1 - two * (j * j + k * k),
        two * (i * j - k * r),
        two * (i * k + j * r),
        two * (i * j + k * r),
        1 - two * (i * i + k * k),
        two * (j * k - i * r),
        two * (i * k - j * r),
        two * (j * k + i * r),
        1 - two * (i * i + j * j),
    )
    return torch.stack(rows, dim=-1).reshape(3, 3)


def _six_d(values: torch.Tensor) -> torch.Tensor:
    first, second = values[None, :3], values[None, 3:]
    b1 = torch.nn.functional.normalize(first, dim=-1)
    b2 = torch.nn.functional.normalize(second - (b1 * second).sum(-1, keepdim=True) * b1, dim=-1)
    return torch.stack((b1, b2, torch.linalg.cross(b1, b2, dim=-1)), dim=-2)[0]


def gradient(parameters: Array, d_matrix: Array) -> Array:
    """dL/d parameters (float64) from dL/d matrix [3, 3]."""
    values = np.asarray(parameters, np.float64)
    if len(values) == 3:
        return np.array([np.sum(d_matrix * d) for d in _axis_angle_derivatives(values)])
    return _six_d_gradient(values, np.asarray(d_matrix, np.float64))


def _skew(v: Array) -> Array:
    return np.array([[0.0, -v[2], v[1]], [v[2], 0.0, -v[0]], [-v[1], v[0], 0.0]])


def _axis_angle_derivatives(v: Array) -> list[Array]:
    """dR/dv_i, after Gallego and Yezzi (2015), equation (8); near 0 from the series of the exponential."""
    angle2 = float(v @ v)
    unit = np.eye(3)
    if angle2 < 1e-8:
        k = _skew(v)
        return [_skew(e) + 0.5 * (_skew(e) @ k + k @ _skew(e)) for e in unit]
    angle = math.sqrt(angle2)
    k = _skew(v)
    rotation = unit + math.sin(angle) / angle * k + (1.0 - math.cos(angle)) / angle2 * (k @ k)
    return [(v[i] * k + _skew(np.cross(v, (unit - rotation) @ unit[i]))) @ rotation / angle2 for i in range(3)]


def _unnormalise(vector: Array, d_unit: Array) -> Array:
    """The gradient dL/d vector from dL/d (vector / |vector|)."""
    length = max(float(np.linalg.norm(vector)), 1e-12)
    unit = vector / length
    result: Array = (d_unit - unit * (unit @ d_unit)) / length
    return result


def _six_d_gradient(values: Array, d_matrix: Array) -> Array:
    a1, a2 = values[:3], values[3:]
    b1 = a1 / max(float(np.linalg.norm(a1)), 1e-12)
    rest = a2 - (b1 @ a2) * b1
    b2 = rest / max(float(np.linalg.norm(rest)), 1e-12)
    d1, d2, d3 = d_matrix
    # b3 = b1 x b2.
    d1 = d1 + np.cross(b2, d3)
    d2 = d2 + np.cross(d3, b1)
    d_rest = _unnormalise(rest, d2)
    d_a2 = d_rest - (b1 @ d_rest) * b1
    d1 = d1 - (b1 @ d_rest) * a2 - (b1 @ a2) * d_rest
    return np.concatenate([_unnormalise(a1, d1), d_a2])
