"""Gaussians under the transforms of scene graphs: matrices with a scale, and the half turn between two axis systems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.scene import StoredScene, flipped, unit_quats
from lumigrad.client.values.quaternions import harmonics, matrices, matrix_rows, quaternions

# Relative difference of a matrix's scales that counts as rounding.
_ROUNDING = 1e-6
# Directions in which harmonics are compared to turn them; 25 would do, more are better conditioned.
_DIRECTIONS = 128


def placed(scene: StoredScene, matrix: Float64, fail: Callable[[str], InvalidArgument]) -> StoredScene:
    """Returns the scene under an affine transform M, which must not mirror.

    Means become M means, covariances M C M^T, and the harmonics turn with the rotation in M's polar decomposition.

    Args:
        scene: the scene.
        matrix: [4, 4] for column vectors.
        fail: makes the error of a matrix that mirrors, flattens or is not finite.
    """
    linear, offset = matrix[:3, :3], matrix[:3, 3]
    if np.array_equal(matrix, np.eye(4)):
        return scene
    if not np.isfinite(matrix).all() or not np.linalg.det(linear) > 0:
        raise fail(
            f"expected transforms that neither mirror nor flatten, got the matrix {linear.tolist()}; "
            "apply it to the Gaussians in the program that made the file"
        )
    left, factors, right = np.linalg.svd(linear)
    rotation = left @ right
    if factors[0] - factors[2] <= _ROUNDING * factors[0]:
        turn = quats_of_matrices(rotation[None])[0]
        quats, scales = products(turn, unit_quats(scene.quats)), scene.scales * factors.mean()
    else:
        axes = matrices_of_quats(scene.quats) * scene.scales[:, None, :]
        quats, scales = _principal_axes(linear @ axes)
    return replace(
        scene,
        means=np.asarray(scene.means.astype(np.float64) @ linear.T + offset, np.float32),
        quats=np.asarray(quats, np.float32),
        scales=np.asarray(scales, np.float32),
        sh=turned_harmonics(scene.sh, rotation),
    )


def half_turned(scene: StoredScene, *, back: bool = False) -> StoredScene:
    """Returns the scene after half a turn about z, from right, down, forward to left, up, forward.

    Quaternions (w, x, y, z) become (-z, -y, x, w), so that turning back gives the same numbers.

    Args:
        scene: the scene.
        back: turn back.
    """
    w, x, y, z = scene.quats.T
    quats = (z, y, -x, -w) if back else (-z, -y, x, w)
    return replace(flipped(scene, (-1, -1, 1)), quats=np.stack(quats, axis=1))


def products(first: Float64, second: Float64) -> Float64:
    """Returns the products of quaternions (w, x, y, z), [4] or [N, 4]."""
    a, b, c, d = first.T
    w, x, y, z = second.T
    return np.stack(
        [
            a * w - b * x - c * y - d * z,
            a * x + b * w + c * z - d * y,
            a * y - b * z + c * w + d * x,
            a * z + b * y - c * x + d * w,
        ],
        axis=-1,
    )


def matrices_of_quats(quats: npt.NDArray[Any]) -> Float64:
    """Returns the rotation matrices [N, 3, 3] of quaternions [N, 4] (w, x, y, z) of any length."""
    return np.asarray(matrices(matrix_rows(*unit_quats(quats).T), np.stack))


def quats_of_matrices(rotations: Float64) -> Float64:
    """Returns unit quaternions [N, 4] (w, x, y, z) of rotation matrices [N, 3, 3]."""
    return unit_quats(np.stack(quaternions(rotations, np.stack), axis=-1))


def turned_harmonics(sh: Float32, rotation: Float64) -> Float32:
    """Returns coefficients [N, K, D] after a rotation [3, 3] of what they describe.

    The turned function in the direction d is the old one in R^-1 d; in enough directions, that is a system of linear
    equations for the matrix that turns the coefficients.
    """
    if sh.shape[1] == 1 or np.abs(rotation - np.eye(3)).max() < 1e-12:
        return sh
    degree = math.isqrt(sh.shape[1]) - 1
    steps = np.arange(_DIRECTIONS)
    heights, angles = 1 - (2 * steps + 1) / _DIRECTIONS, steps * math.pi * (3 - math.sqrt(5))
    radii = np.sqrt(1 - heights**2)
    directions = np.stack([radii * np.cos(angles), radii * np.sin(angles), heights], axis=1)
    turn = np.linalg.lstsq(_basis(directions, degree), _basis(directions @ rotation, degree), rcond=None)[0]
    return np.asarray(np.einsum("kj,njd->nkd", turn, sh.astype(np.float64)), np.float32)


def _basis(directions: Float64, degree: int) -> Float64:
    """Returns [M, K], the spherical harmonics of unit vectors [M, 3]."""
    return np.stack(harmonics(degree, *directions.T), axis=1)


def _principal_axes(axes: Float64) -> tuple[Float64, Float64]:
    """Returns quaternions and scales of the covariances A A^T of matrices [N, 3, 3]."""
    finite = np.asarray(np.isfinite(axes).all(axis=(1, 2)))
    # NumPy decomposes no array with NaN in it.
    rotations, scales, _ = np.linalg.svd(np.where(finite[:, None, None], axes, 0.0))
    scales[~finite] = np.nan
    # The three axes must be a rotation; which way one of them points does not matter.
    rotations[:, :, 2] *= np.linalg.det(rotations)[:, None]
    return quats_of_matrices(rotations), scales
