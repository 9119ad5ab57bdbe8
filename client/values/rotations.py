"""Rotation matrices from rotation parameters or viewing directions."""

from __future__ import annotations

import numpy as np

from lumigrad.client.base.arrays import Float64
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
