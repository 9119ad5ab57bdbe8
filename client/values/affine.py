"""Applies affine maps to Gaussians: to their centres, shapes and spherical harmonics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.quaternions import harmonics, matrices, matrix_rows, quaternions

# Relative difference of a matrix's scales that counts as rounding.
_ROUNDING = 1e-6
# Directions at which harmonics are sampled to rotate them; 25 would do, but more are better conditioned.
_DIRECTIONS = 128
# Entries xx xy xz yy yz zz of a symmetric matrix.
_ROWS, _COLUMNS = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)


@dataclass(frozen=True)
class Affine:
    """An affine map M of points that does not mirror: x becomes linear x + offset.

    Attributes:
        linear: [3, 3].
        offset: [3] scene units.
    """

    linear: Float64
    offset: Float64

    @staticmethod
    def of(matrix: Float64, fail: Callable[[str], InvalidArgument]) -> Affine:
        """Returns the map of a matrix [4, 4] or [3, 4] for column vectors; `fail` makes the error for an invalid one.

        Raises:
            InvalidArgument: the matrix mirrors, flattens or is not finite.
        """
        linear, offset = matrix[:3, :3], matrix[:3, 3]
        if not np.isfinite(matrix).all() or not np.linalg.det(linear) > 0:
            raise fail(
                f"expected transforms that neither mirror nor flatten, got the matrix {linear.tolist()}; "
                "apply it to the Gaussians in the program that made them"
            )
        return Affine(linear, offset)

    @cached_property
    def _factors(self) -> tuple[Float64, Float64]:
        """The rotation in the polar decomposition, and the three scales."""
        left, factors, right = np.linalg.svd(self.linear)
        return np.asarray(left @ right), np.asarray(factors)

    def means(self, means: Float32) -> Float32:
        """Returns centres [.., 3] under the map."""
        return np.asarray(means.astype(np.float64) @ self.linear.T + self.offset, np.float32)

    def shapes(self, quats: Float32, scales: Float32) -> tuple[Float32, Float32]:
        """Returns quaternions [N, 4] and scales [N, 3] of the covariances M C M^T."""
        rotation, factors = self._factors
        if factors[0] - factors[2] <= _ROUNDING * factors[0]:
            turn = quats_of_matrices(rotation[None])[0]
            found = products(turn, unit_quats(quats)), scales * factors.mean()
        else:
            found = _principal_axes(self.linear @ (matrices_of_quats(quats) * scales[:, None, :]))
        return np.asarray(found[0], np.float32), np.asarray(found[1], np.float32)

    def covariances(self, covariances: Float32) -> Float32:
        """Returns covariances [.., 6] under the map, M C M^T."""
        whole = np.empty((*covariances.shape[:-1], 3, 3))
        whole[..., _ROWS, _COLUMNS] = whole[..., _COLUMNS, _ROWS] = covariances
        return np.asarray((self.linear @ whole @ self.linear.T)[..., _ROWS, _COLUMNS], np.float32)

    def harmonics(self, sh: Float32) -> Float32:
        """Returns coefficients [N, K, D] after the rotation in the map's polar decomposition.

        The rotated function in direction d equals the original one in R^-1 d. For enough directions, this gives linear
        equations for the matrix that rotates the coefficients.
        """
        rotation = self._factors[0]
        if sh.shape[1] == 1 or np.abs(rotation - np.eye(3)).max() < 1e-12:
            return sh
        degree = math.isqrt(sh.shape[1]) - 1
        steps = np.arange(_DIRECTIONS)
        heights, angles = 1 - (2 * steps + 1) / _DIRECTIONS, steps * math.pi * (3 - math.sqrt(5))
        radii = np.sqrt(1 - heights**2)
        directions = np.stack([radii * np.cos(angles), radii * np.sin(angles), heights], axis=1)
        turn = np.linalg.lstsq(_basis(directions, degree), _basis(directions @ rotation, degree), rcond=None)[0]
        return np.asarray(np.einsum("kj,njd->nkd", turn, sh.astype(np.float64)), np.float32)


def unit_quats(quats: npt.NDArray[Any]) -> Float64:
    """Returns quaternions [N, 4] (w, x, y, z) normalised; length 0 becomes no rotation, as in Inria's formula."""
    wide = quats.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(np.where(lengths > 0, wide / np.maximum(lengths, 1e-300), np.array([1.0, 0.0, 0.0, 0.0])))


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


def _basis(directions: Float64, degree: int) -> Float64:
    """Returns [M, K], the spherical harmonics of unit vectors [M, 3]."""
    return np.stack(harmonics(degree, *directions.T), axis=1)


def _principal_axes(axes: Float64) -> tuple[Float64, Float64]:
    """Returns quaternions and scales of the covariances A A^T of matrices [N, 3, 3]."""
    finite = np.asarray(np.isfinite(axes).all(axis=(1, 2)))
    # NumPy's SVD raises for NaN.
    rotations, scales, _ = np.linalg.svd(np.where(finite[:, None, None], axes, 0.0))
    scales[~finite] = np.nan
    # The three axes must be a rotation; which way one of them points does not matter.
    rotations[:, :, 2] *= np.linalg.det(rotations)[:, None]
    return quats_of_matrices(rotations), scales
