"""Rotations of poses that change during an exposure: axes, angles, and checks of rotation matrices."""

from __future__ import annotations

import math

import numpy as np

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
    left, _, right = np.linalg.svd(given)
    error = float(np.abs(given @ given.T - np.eye(3)).max())
    if error > _ORTHONORMAL or np.linalg.det(given) < 0.0:
        expected = f"a rotation: orthonormal to {_ORTHONORMAL:g}, of determinant 1"
        raise ArgumentError(name, expected, f"{given.tolist()}")
    result: Array = left @ right
    return result


def axis_and_angle(rotation: Array) -> tuple[Array, float]:
    """The axis [3], of length 1, and the angle in [0, pi] of a rotation."""
    skew = rotation - rotation.T
    twice_sine = np.array([skew[2, 1], skew[0, 2], skew[1, 0]])
    length = float(np.linalg.norm(twice_sine))
    angle = math.atan2(length, float(np.trace(rotation)) - 1.0)
    if length > 1e-6 * (1.0 + angle):
        return twice_sine / length, angle
    if angle < 1.0:
        return (twice_sine / length if length > 0.0 else np.array([1.0, 0.0, 0.0])), angle
    # Half a turn: the axis is the column of largest length of (R + 1) / 2.
    columns = 0.5 * (rotation + np.eye(3))
    axis: Array = columns[:, int(np.argmax(np.diag(columns)))]
    return axis / np.linalg.norm(axis), angle


def cross_matrix(v: Array) -> Array:
    """The matrix [3, 3] that maps a vector w to v x w."""
    return np.array([[0.0, -v[2], v[1]], [v[2], 0.0, -v[0]], [-v[1], v[0], 0.0]])


def rotation_about(v: Array) -> Array:
    """The rotation [3, 3] by a vector [3] of axis times angle."""
    angle = float(np.linalg.norm(v))
    k = cross_matrix(v / angle) if angle > 0.0 else np.zeros((3, 3))
    result: Array = np.eye(3) + math.sin(angle) * k + (1.0 - math.cos(angle)) * k @ k
    return result
