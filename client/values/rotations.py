"""Rotations from parameters, viewing directions and quaternions; poses [7]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64, float64_array, to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.quaternions import quaternions


def axis_angle_rotation(vector: Float64) -> Float64:
    """Returns the rotation [3, 3] around `vector` [3] by its length, radians."""
    angle = float(np.linalg.norm(vector))
    if angle == 0.0:
        return np.eye(3)
    x, y, z = vector / angle
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * cross @ cross)


def six_d_rotation(values: Float64) -> Float64:
    """Returns the matrix [3, 3] of two row vectors, from `values` [6] orthonormalised, and their cross product."""
    first = unit("parameters", values[:3])
    second = unit("parameters", values[3:] - np.dot(first, values[3:]) * first)
    return np.stack([first, second, np.cross(first, second)])


def look_rotation(forward: Float64, up: Float64) -> Float64:
    """Returns the rotation [3, 3] world to camera; its rows are the camera's right, down and forward directions."""
    forward = unit("target", forward)
    right = np.cross(forward, unit("up", up))
    if np.linalg.norm(right) < 1e-9:
        raise InvalidArgument.of("up", "expected a direction that differs from the view direction; choose another")
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


def orbit_direction(azimuth_degrees: float, elevation_degrees: float, up: Float64) -> Float64:
    """Returns the unit vector [3] from the centre of an orbit to the camera.

    Azimuth 0 is the axis after `up` in the order x, y, z, x; azimuths grow counter-clockwise seen from above.
    """
    upward = unit("up", up)
    ahead = np.eye(3)[(int(np.argmax(np.abs(upward))) + 1) % 3]
    ahead = unit("up", ahead - np.dot(ahead, upward) * upward)
    side = np.cross(upward, ahead)
    azimuth, elevation = np.radians(azimuth_degrees), np.radians(elevation_degrees)
    level = np.cos(azimuth) * ahead + np.sin(azimuth) * side
    return np.asarray(np.cos(elevation) * level + np.sin(elevation) * upward)


def unit(name: str, vector: Float64) -> Float64:
    """Normalises `vector`; `name` is for the error of a zero vector."""
    length = float(np.linalg.norm(vector))
    if length == 0.0:
        raise InvalidArgument.of(name, "expected a direction, got a vector of length 0")
    return vector / length


_SHORTEST_QUATERNION = 1e-6
# Tolerance of |R R^T - 1| for a matrix to be accepted as a rotation.
_LARGEST_DEVIATION = 1e-3

IDENTITY: Float64 = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
IDENTITY.flags.writeable = False


# Accepted shapes of a pose.
_POSE_SHAPES = ((7,), (3,), (3, 4), (4, 4))
_LAST_ROW = (0.0, 0.0, 0.0, 1.0)


def pose_array(name: str, value: Any) -> Float64:
    """Converts `value` to a read-only float64 pose [7], object to world: x y z (metres) and quaternion w x y z.

    Args:
        name: the argument's name, for the error message.
        value: [7] with a quaternion of any length > 0; [3] x y z without rotation; or a rigid matrix [3, 4] or [4, 4]
            for column vectors.
    """
    array = to_numpy(name, value)
    if array.shape not in _POSE_SHAPES:
        raise InvalidArgument.of(
            name,
            f"expected [7] x y z qw qx qy qz, [3] x y z, or a matrix [3, 4] or [4, 4], got shape {list(array.shape)}",
        )
    pose = float64_array(name, array, array.shape)
    if pose.ndim == 2:
        check_rigid(name, pose[None])
    pose = np.asarray(pose_rows(name, pose[None], 1, np.stack)[0])
    length = float(np.linalg.norm(pose[3:]))
    if length < _SHORTEST_QUATERNION:
        raise InvalidArgument.of(
            name,
            f"expected a quaternion of length 1 after x y z, got {pose[3:].tolist()}; 1 0 0 0 turns nothing",
        )
    if array.ndim == 2:
        pose[3:] /= length if pose[3] >= 0 else -length
    pose.flags.writeable = False
    return pose


def matrix_of(name: str, pose: Any) -> Float64:
    """Returns the matrix [4, 4] of a pose in any form of `pose_array`; errors name the argument `name`."""
    values = pose_array(name, pose)
    matrix = np.eye(4)
    matrix[:3, :3] = rotated(values[3:] / np.linalg.norm(values[3:]), np.eye(3)).T
    matrix[:3, 3] = values[:3]
    return matrix


def pose_rows(name: str, poses: Any, count: int | None, stack: Callable[[list[Any], int], Any]) -> Any:
    """Converts poses in any form to [I, 7], with differentiable operations that NumPy, torch and JAX share.

    Args:
        name: the argument's name, for the error message.
        poses: [I, 7], [I, 3], [I, 3, 4] or [I, 4, 4], as for `pose_array`; matrices are checked by `check_rigid`.
        count: I; None: any number.
        stack: the library's function `stack`.

    Returns:
        Positions and quaternions; quaternions of matrices have lengths from 2 to 4.

    Raises:
        InvalidArgument: the array has the wrong shape.
    """
    check_pose_rows(name, poses.shape, count)
    if poses.ndim == 3:
        numbers = [*(poses[:, axis, 3] for axis in range(3)), *quaternions(poses, stack)]
    elif poses.shape[1] == 3:
        none = poses[:, 0] * 0.0
        numbers = [*(poses[:, axis] for axis in range(3)), none + 1.0, none, none, none]
    else:
        return poses
    return stack(numbers, -1)


def check_pose_rows(name: str, shape: Sequence[int], count: int | None) -> None:
    """Raises InvalidArgument unless `shape` is one that `pose_rows` accepts."""
    if tuple(shape[1:]) not in _POSE_SHAPES or count not in (None, shape[0]):
        i = "I" if count is None else count
        expected = f"[{i}, 7], [{i}, 3], [{i}, 3, 4] or [{i}, 4, 4], one pose for each obstacle"
        raise InvalidArgument.of(name, f"expected shape {expected}, got {list(shape)}")


def check_rigid(name: str, matrices: Float64) -> None:
    """Raises InvalidArgument unless matrices [I, 3, 4] or [I, 4, 4] are rigid."""
    if matrices.shape[1] == 4 and not np.allclose(matrices[:, 3], _LAST_ROW, atol=1e-6):
        found = matrices[np.argmax(np.abs(matrices[:, 3] - _LAST_ROW).max(axis=1)), 3].tolist()
        text = f"expected the last row 0 0 0 1, got {found}; transpose a matrix that is for row vectors"
        raise InvalidArgument.of(name, text)
    rotations = matrices[:, :3, :3]
    deviations = np.abs(rotations @ rotations.swapaxes(1, 2) - np.eye(3)).max(axis=(1, 2), initial=0.0)
    for index in np.flatnonzero(~(deviations <= _LARGEST_DEVIATION) | ~(np.linalg.det(rotations) >= 0)):
        expected = "expected a rotation in the first three rows and columns"
        why = why_no_rotation(rotations[index])
        raise InvalidArgument.of(name, f"{expected}, {why}; take scale and mirror out of it")


def why_no_rotation(matrix: Float64) -> str:
    """Returns why a matrix [3, 3] is not accepted as a rotation, for an error text; empty if it is accepted."""
    deviation, determinant = float(np.abs(matrix @ matrix.T - np.eye(3)).max()), float(np.linalg.det(matrix))
    if deviation <= _LARGEST_DEVIATION and determinant >= 0:
        return ""
    return f"R R^T deviates from the identity by {deviation:.3g} and the determinant is {determinant:.3g}"


def inverse_pose(pose: Float64) -> Float64:
    """Returns the inverse poses [.., 7], with unit quaternions."""
    quaternion = pose[..., 3:] / np.linalg.norm(pose[..., 3:], axis=-1, keepdims=True)
    conjugate = quaternion * np.array([1.0, -1.0, -1.0, -1.0])
    return np.concatenate([-rotated(conjugate, pose[..., :3]), conjugate], axis=-1)


def composed(outer: Float64, inner: Float64) -> Float64:
    """Composes poses [7]: `inner` places the object in a frame, and `outer` places the frame in the world."""
    a = outer[3:] / np.linalg.norm(outer[3:])
    b = inner[3:] / np.linalg.norm(inner[3:])
    w = a[0] * b[0] - a[1:] @ b[1:]
    axis = a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])
    return np.concatenate([outer[:3] + rotated(a, inner[:3]), [w], axis])


def rotated(quaternion: Float64, points: Float64) -> Float64:
    """Rotates `points` [.., 3] by unit quaternions [.., 4] (w, x, y, z)."""
    w, axis = quaternion[..., :1], quaternion[..., 1:]
    across = 2.0 * np.cross(axis, points)
    return np.asarray(points + w * across + np.cross(axis, across))


def quaternion_between(a: Float64, b: Float64) -> Float64:
    """Returns a unit quaternion [4] w x y z that rotates the direction of `a` [3] into that of `b` [3]."""
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    # The quaternion is (1 + a . b, a x b), normalised. For opposite directions it is 0: use any perpendicular axis.
    axis, w = np.cross(a, b), 1.0 + float(a @ b)
    if w < 1e-9:
        axis, w = np.cross(a, np.eye(3)[np.abs(a).argmin()]), 0.0
    quaternion = np.concatenate([[w], axis])
    return np.asarray(quaternion / np.linalg.norm(quaternion))
