"""Poses of obstacles: seven numbers that place an object in the world."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumigrad.client.arrays import Float64, float64_array
from lumigrad.client.errors import InvalidArgument

_SHORTEST_QUATERNION = 1e-6

IDENTITY: Float64 = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
IDENTITY.flags.writeable = False


def pose_array(name: str, value: Any) -> Float64:
    """`value` as a read-only float64 pose [7], object to world: x y z (metres) and the quaternion w x y z.

    The quaternion need not have the length 1, but must have a direction.
    """
    pose = float64_array(name, value, (7,))
    length = float(np.linalg.norm(pose[3:]))
    if length < _SHORTEST_QUATERNION:
        raise InvalidArgument.of(
            name,
            f"expected a quaternion of length 1 after x y z, got {pose[3:].tolist()}; 1 0 0 0 turns nothing",
        )
    return pose


def inverse_pose(pose: Float64) -> Float64:
    """[.., 7] world to object for object to world, and the other way round; with unit quaternions."""
    quaternion = pose[..., 3:] / np.linalg.norm(pose[..., 3:], axis=-1, keepdims=True)
    conjugate = quaternion * np.array([1.0, -1.0, -1.0, -1.0])
    return np.concatenate([-rotated(conjugate, pose[..., :3]), conjugate], axis=-1)


def composed(outer: Float64, inner: Float64) -> Float64:
    """[7] object to world, of an object placed by `inner` in a frame that `outer` places in the world."""
    a = outer[3:] / np.linalg.norm(outer[3:])
    b = inner[3:] / np.linalg.norm(inner[3:])
    w = a[0] * b[0] - a[1:] @ b[1:]
    axis = a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])
    return np.concatenate([outer[:3] + rotated(a, inner[:3]), [w], axis])


def rotated(quaternion: Float64, points: Float64) -> Float64:
    """`points` [.., 3] turned by unit quaternions [.., 4] (w, x, y, z)."""
    w, axis = quaternion[..., :1], quaternion[..., 1:]
    across = 2.0 * np.cross(axis, points)
    return np.asarray(points + w * across + np.cross(axis, across))


def quaternion_between(a: Float64, b: Float64) -> Float64:
    """[4] a unit quaternion w x y z that turns the direction of `a` [3] into that of `b` [3]."""
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    # Half of the turn to b is a turn to the middle; opposite ones have none, and turn about any axis across.
    axis, w = np.cross(a, b), 1.0 + float(a @ b)
    if w < 1e-9:
        axis, w = np.cross(a, np.eye(3)[np.abs(a).argmin()]), 0.0
    quaternion = np.concatenate([[w], axis])
    return np.asarray(quaternion / np.linalg.norm(quaternion))
