"""Object poses as position and quaternion, their rotation matrices, and gradients with respect to them; float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lumigrad.kernels.errors import ArgumentError

Array = np.ndarray
Pose = tuple[float, float, float, float, float, float, float]
IDENTITY: Pose = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
# Squares of coordinates, in metres, must not overflow float32, nor reach the coordinates of empty boxes.
MAX_COORDINATE = 1e9
_SHORTEST = 1e-6


def checked_pose(pose: Any, argument: str) -> Pose:
    """Checks a pose x y z (metres) qw qx qy qz, object to world; the quaternion may have any length >= 1e-6.

    Raises:
        ArgumentError: The pose is invalid.
    """
    expected = "7 finite numbers x y z qw qx qy qz, the quaternion not shorter than 1e-6"
    try:
        values = tuple(float(value) for value in pose)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(argument, expected, f"{pose!r}") from None
    if len(values) != 7:
        raise ArgumentError(argument, expected, f"{len(values)} numbers")
    if not (all(map(math.isfinite, values)) and math.hypot(*values[3:]) >= _SHORTEST):
        raise ArgumentError(argument, expected, f"{values}")
    if max(map(abs, values[:3])) > MAX_COORDINATE:
        raise ArgumentError(argument, f"a position within {MAX_COORDINATE:g} m of the origin", f"{values}")
    return values


def are_poses(poses: Array) -> Array:
    """Mark the rows [I, 7] float64 that are certainly valid poses, [I] bool; `checked_pose` decides on the rest."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(poses[:, 3:], axis=1)
    # A margin, since `checked_pose` rounds differently and might reject a length at the limit.
    fits = (lengths >= 2 * _SHORTEST) & (np.abs(poses[:, :3]).max(axis=1, initial=0.0) <= MAX_COORDINATE)
    return np.asarray(fits & np.isfinite(poses).all(axis=1))


def rotations(poses: Array) -> Array:
    """Rotation matrices [I, 3, 3], object to world, of poses [I, 7]."""
    quaternions = poses[:, 3:] / np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)
    w, x, y, z = quaternions.T
    rows = (
        1 - 2 * (y * y + z * z),
        2 * (x * y - w * z),
        2 * (x * z + w * y),
        2 * (x * y + w * z),
        1 - 2 * (x * x + z * z),
        2 * (y * z - w * x),
        2 * (x * z - w * y),
        2 * (y * z + w * x),
        1 - 2 * (x * x + y * y),
    )
    return np.stack(rows, axis=-1).reshape(-1, 3, 3)


def placements(poses: Array) -> Array:
    """World-to-object transforms [I, 12] of poses [I, 7]: rotation (row-major), then translation."""
    inverse = rotations(poses).swapaxes(1, 2)
    shift = -(inverse @ poses[:, :3, None])
    return np.ascontiguousarray(np.concatenate([inverse.reshape(-1, 9), shift[:, :, 0]], axis=1))


def pose_gradient(poses: Array, d_translation: Array, d_rotation: Array) -> Array:
    """The gradient dL/d pose [I, 7] from dL/d translation [I, 3] and dL/d rotation [I, 3, 3].

    The nine entries of dL/d rotation are independent. The derivative of the quaternions' normalisation is included.
    """
    lengths = np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)
    unit = poses[:, 3:] / lengths
    w, x, y, z = unit.T
    d = d_rotation
    even = d + d.swapaxes(1, 2)
    turn_x, turn_y, turn_z = d[:, 2, 1] - d[:, 1, 2], d[:, 0, 2] - d[:, 2, 0], d[:, 1, 0] - d[:, 0, 1]
    parts = (
        x * turn_x + y * turn_y + z * turn_z,
        w * turn_x + y * even[:, 0, 1] + z * even[:, 0, 2] - x * (even[:, 1, 1] + even[:, 2, 2]),
        w * turn_y + x * even[:, 0, 1] + z * even[:, 1, 2] - y * (even[:, 0, 0] + even[:, 2, 2]),
        w * turn_z + x * even[:, 0, 2] + y * even[:, 1, 2] - z * (even[:, 0, 0] + even[:, 1, 1]),
    )
    d_unit = 2.0 * np.stack(parts, axis=-1)
    d_quaternion = (d_unit - unit * np.sum(unit * d_unit, axis=1, keepdims=True)) / lengths
    return np.concatenate([d_translation, d_quaternion], axis=1)
