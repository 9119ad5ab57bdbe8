"""Rotations from parameters, viewing directions and quaternions, and poses of seven numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64, affine_array, float64_array, to_numpy
from lumigrad.client.errors import InvalidArgument


def axis_angle_rotation(vector: Float64) -> Float64:
    """[3, 3] the rotation around `vector` [3] by its length, radians."""
    angle = float(np.linalg.norm(vector))
    if angle == 0.0:
        return np.eye(3)
    x, y, z = vector / angle
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * cross @ cross)


def six_d_rotation(values: Float64) -> Float64:
    """[3, 3] whose rows are the two vectors in `values` [6], made orthonormal, and their cross product."""
    first = unit("parameters", values[:3])
    second = unit("parameters", values[3:] - np.dot(first, values[3:]) * first)
    return np.stack([first, second, np.cross(first, second)])


def look_rotation(forward: Float64, up: Float64) -> Float64:
    """[3, 3] world to camera; rows are the camera's right, down and forward directions in the world."""
    forward = unit("target", forward)
    right = np.cross(forward, unit("up", up))
    if np.linalg.norm(right) < 1e-9:
        raise InvalidArgument.of("up", "expected a direction that differs from the view direction; choose another")
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


def orbit_direction(azimuth_degrees: float, elevation_degrees: float, up: Float64) -> Float64:
    """[3] unit vector from the centre of an orbit to the camera.

    Azimuth 0 is the axis that follows `up` in the order x, y, z, x; it grows counter-clockwise seen from above.
    """
    upward = unit("up", up)
    ahead = np.eye(3)[(int(np.argmax(np.abs(upward))) + 1) % 3]
    ahead = unit("up", ahead - np.dot(ahead, upward) * upward)
    side = np.cross(upward, ahead)
    azimuth, elevation = np.radians(azimuth_degrees), np.radians(elevation_degrees)
    level = np.cos(azimuth) * ahead + np.sin(azimuth) * side
    return np.asarray(np.cos(elevation) * level + np.sin(elevation) * upward)


def unit(name: str, vector: Float64) -> Float64:
    """`vector` at length 1; `name` is for the error of a zero vector."""
    length = float(np.linalg.norm(vector))
    if length == 0.0:
        raise InvalidArgument.of(name, "expected a direction, got a vector of length 0")
    return vector / length


_SHORTEST_QUATERNION = 1e-6
# Tolerance of R R^T - 1 for a matrix that is accepted as a rotation.
_LARGEST_DEVIATION = 1e-3

IDENTITY: Float64 = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
IDENTITY.flags.writeable = False


def pose_array(name: str, value: Any) -> Float64:
    """`value` as a read-only float64 pose [7], object to world: x y z (metres) and the quaternion w x y z.

    Args:
        name: the argument's name, for the error message.
        value: the seven numbers, the quaternion of any length > 0; or x y z without rotation; or a matrix [4, 4] for
            column vectors, a rotation and a translation.
    """
    array = to_numpy(name, value)
    if array.shape not in ((7,), (3,), (4, 4)):
        raise InvalidArgument.of(
            name, f"expected [7] x y z qw qx qy qz, [3] x y z, or a matrix [4, 4], got shape {list(array.shape)}"
        )
    if array.shape == (4, 4):
        pose = _of_matrix(name, affine_array(name, array))
    else:
        pose = float64_array(name, array, array.shape)
    if pose.shape == (3,):
        pose = np.concatenate([pose, IDENTITY[3:]])
    pose.flags.writeable = False
    length = float(np.linalg.norm(pose[3:]))
    if length < _SHORTEST_QUATERNION:
        raise InvalidArgument.of(
            name,
            f"expected a quaternion of length 1 after x y z, got {pose[3:].tolist()}; 1 0 0 0 turns nothing",
        )
    return pose


def why_no_rotation(matrix: Float64) -> str:
    """Why a matrix [3, 3] is not accepted as a rotation, for an error text; empty: it is."""
    deviation, determinant = float(np.abs(matrix @ matrix.T - np.eye(3)).max()), float(np.linalg.det(matrix))
    if deviation <= _LARGEST_DEVIATION and determinant >= 0:
        return ""
    return f"R R^T deviates from the identity by {deviation:.3g} and the determinant is {determinant:.3g}"


def _of_matrix(name: str, matrix: Float64) -> Float64:
    """[7] of a matrix [4, 4], object to world."""
    rotation = matrix[:3, :3]
    why = why_no_rotation(rotation)
    if why:
        expected = "expected a rotation in the first three rows and columns"
        raise InvalidArgument.of(name, f"{expected}, {why}; take scale and mirror out of it")
    (a, b, c), (d, e, f), (g, h, i) = rotation
    # 4 q qT; the lower triangle is what eigh reads, and q the direction of its largest eigenvalue.
    products = np.array(
        [
            [1 + a + e + i, 0, 0, 0],
            [h - f, 1 + a - e - i, 0, 0],
            [c - g, b + d, 1 - a + e - i, 0],
            [d - b, c + g, f + h, 1 - a - e + i],
        ]
    )
    quaternion = np.linalg.eigh(products).eigenvectors[:, -1]
    return np.concatenate([matrix[:3, 3], quaternion if quaternion[0] >= 0 else -quaternion])


def inverse_pose(pose: Float64) -> Float64:
    """[.., 7] the inverse poses, with unit quaternions."""
    quaternion = pose[..., 3:] / np.linalg.norm(pose[..., 3:], axis=-1, keepdims=True)
    conjugate = quaternion * np.array([1.0, -1.0, -1.0, -1.0])
    return np.concatenate([-rotated(conjugate, pose[..., :3]), conjugate], axis=-1)


def composed(outer: Float64, inner: Float64) -> Float64:
    """[7] object to world: `inner` places the object in a frame, `outer` the frame in the world."""
    a = outer[3:] / np.linalg.norm(outer[3:])
    b = inner[3:] / np.linalg.norm(inner[3:])
    w = a[0] * b[0] - a[1:] @ b[1:]
    axis = a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])
    return np.concatenate([outer[:3] + rotated(a, inner[:3]), [w], axis])


def rotated(quaternion: Float64, points: Float64) -> Float64:
    """`points` [.., 3] rotated by unit quaternions [.., 4] (w, x, y, z)."""
    w, axis = quaternion[..., :1], quaternion[..., 1:]
    across = 2.0 * np.cross(axis, points)
    return np.asarray(points + w * across + np.cross(axis, across))


def quaternion_between(a: Float64, b: Float64) -> Float64:
    """[4] a unit quaternion w x y z that rotates the direction of `a` [3] into that of `b` [3]."""
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    # The half-way direction gives half of the rotation; opposite directions have none: use any perpendicular axis.
    axis, w = np.cross(a, b), 1.0 + float(a @ b)
    if w < 1e-9:
        axis, w = np.cross(a, np.eye(3)[np.abs(a).argmin()]), 0.0
    quaternion = np.concatenate([[w], axis])
    return np.asarray(quaternion / np.linalg.norm(quaternion))
