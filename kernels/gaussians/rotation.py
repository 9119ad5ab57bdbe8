"""Rotations of poses that change during an exposure: axes, angles, and checks of rotation matrices."""

from __future__ import annotations

import math

import numpy as np

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError

Array = np.ndarray
_ORTHONORMAL = 1e-4
# Rotations that differ by less are turned by this angle, so that no derivative divides by 0.
LEAST_ANGLE = 1e-12


def rotation_matrix(name: str, given: Array) -> Array:
    """The rotation nearest to a matrix [3, 3] that is orthonormal to 1e-4.

    Raises:
        ArgumentError: The matrix is not orthonormal.
    """
    error = float(np.abs(given @ given.T - np.eye(3)).max())
    if error > _ORTHONORMAL or np.linalg.det(given) < 0.0:
        expected = f"a rotation: orthonormal to {_ORTHONORMAL:g}, of determinant 1"
        raise ArgumentError(name, expected, f"{given.tolist()}")
    return np.array(_native.nearest_rotation(given.ravel().tolist())).reshape(3, 3)


def turn_between(start: Array, end: Array) -> tuple[Array, float]:
    """The axis [3], of length 1, and the angle in [0, pi] of the rotation from one rotation [3, 3] to another."""
    axis, angle = _native.turn_between(start.ravel().tolist(), end.ravel().tolist())
    return np.array(axis), angle


def cross_matrix(v: Array) -> Array:
    """The matrix [3, 3] that maps a vector w to v x w."""
    return np.array([[0.0, -v[2], v[1]], [v[2], 0.0, -v[0]], [-v[1], v[0], 0.0]])


def rotation_about(v: Array) -> Array:
    """The rotation [3, 3] by a vector [3] of axis times angle."""
    angle = float(np.linalg.norm(v))
    k = cross_matrix(v / angle) if angle > 0.0 else np.zeros((3, 3))
    result: Array = np.eye(3) + math.sin(angle) * k + (1.0 - math.cos(angle)) * k @ k
    return result
