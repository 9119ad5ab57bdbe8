"""Rotations as data sets write them."""

from __future__ import annotations

import numpy as np

from lumigrad.client.arrays import Float64
from lumigrad.client.datasets.fields import Fields

_LARGEST_DEVIATION = 1e-3


def checked_rotation(fields: Fields, name: str, matrix: Float64) -> Float64:
    """A matrix [3, 3] if it is a rotation; InvalidArgument that names the field if not."""
    deviation = float(np.abs(matrix @ matrix.T - np.eye(3)).max())
    if deviation > _LARGEST_DEVIATION or np.linalg.det(matrix) < 0:
        raise fields.fail(
            name,
            "an orthonormal rotation of determinant 1",
            f"R R^T off the identity by {deviation:.3g}, determinant {np.linalg.det(matrix):.3g}",
        )
    return matrix


def quaternion_rotation(w: float, x: float, y: float, z: float) -> Float64:
    """[3, 3] the rotation of a quaternion of any length > 0."""
    w, x, y, z = np.array([w, x, y, z]) / np.linalg.norm([w, x, y, z])
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
