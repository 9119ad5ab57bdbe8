"""Rigid transforms: seven numbers x y z qw qx qy qz, matrices, and what a joint does. NumPy or torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumigrad.client.arrays import Float64
from lumigrad.client.pose import pose_array
from lumigrad.client.robots.numbers import like, module_of


def matrix_of(name: str, pose: Any) -> Float64:
    """[4, 4] of a pose [7]; the name is for the error of one that is none."""
    values = pose_array(name, pose)
    w, x, y, z = values[3:] / np.linalg.norm(values[3:])
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    matrix = np.eye(4)
    matrix[:3, :3] += 2 * w * cross + 2 * cross @ cross
    matrix[:3, 3] = values[:3]
    return matrix


def poses_of(rotation: Any, translation: Any) -> Any:
    """[.., 7] x y z qw qx qy qz of rotation matrices [.., 3, 3] and translations [.., 3]; differentiable in torch."""
    xp = module_of(rotation)
    m = [[rotation[..., i, j] for j in range(3)] for i in range(3)]
    x, y, z = m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]
    xy, yz, zx = m[1][0] + m[0][1], m[2][1] + m[1][2], m[0][2] + m[2][0]
    # 4 q qT: each row is a multiple of q, that with the largest diagonal is far from 0.
    diagonal = [
        1 + m[0][0] + m[1][1] + m[2][2],
        1 + m[0][0] - m[1][1] - m[2][2],
        1 - m[0][0] + m[1][1] - m[2][2],
        1 - m[0][0] - m[1][1] + m[2][2],
    ]
    rows = [
        xp.stack([diagonal[0], x, y, z], -1),
        xp.stack([x, diagonal[1], xy, zx], -1),
        xp.stack([y, xy, diagonal[2], yz], -1),
        xp.stack([z, zx, yz, diagonal[3]], -1),
    ]
    largest = xp.stack(diagonal, -1).argmax(-1)[..., None]
    chosen = xp.where(largest == 0, rows[0], xp.where(largest == 1, rows[1], xp.where(largest == 2, rows[2], rows[3])))
    quaternion = chosen / (chosen * chosen).sum(-1)[..., None] ** 0.5
    return xp.concatenate([translation, quaternion], -1)


def turns(axes: Float64, angles: Any) -> Any:
    """[.., K, 3, 3] rotations about K unit axes [K, 3] by angles [.., K], radians (Rodrigues); an axis 0: none."""
    xp = module_of(angles)
    x, y, z = axes.T
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(-1, 3, 3)
    sine, versine = xp.sin(angles)[..., None, None], 1 - xp.cos(angles)[..., None, None]
    return like(angles, np.eye(3)) + sine * like(angles, cross) + versine * like(angles, cross @ cross)
