"""Merges neighbouring Gaussians into one with the same moments, and measures how far that moves their content."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.values.affine import unit_quats
from lumigrad.client.values.quaternions import matrices, matrix_rows, quaternions

Integers = npt.NDArray[np.int64]

# The exponent of Thomsen's formula for the surface of an ellipsoid, whose error is at most 1.1 %.
THOMSEN = 1.6075
# Keeps divisions defined where all Gaussians of a group are invisible.
TINY = 1e-30
# Peak optical depths t of a Gaussian g, and its opacity 1 - exp(-t g) integrated over the plane, relative to the
# integral of g: the integral of (1 - exp(-x)) / x from 0 to t.
DEPTHS = np.concatenate([[0.0], np.geomspace(1e-4, 100.0, 4096)])
_RATES = np.concatenate([[1.0], -np.expm1(-DEPTHS[1:]) / DEPTHS[1:]])
MASSES = np.concatenate([[0.0], np.cumsum((_RATES[1:] + _RATES[:-1]) / 2 * np.diff(DEPTHS))])


def covariances_of(scene: StoredScene) -> Float64:
    """Returns [N, 3, 3], the covariances in scene units squared."""
    rotations = matrices(matrix_rows(*unit_quats(scene.quats).T), _stack)
    axes = rotations * scene.scales.astype(np.float64)[:, None, :]
    return np.asarray(axes @ axes.swapaxes(1, 2))


def areas_of(scales: npt.NDArray[Any]) -> Float64:
    """Returns [N], the projected areas of ellipsoids with half axes [N, 3], averaged over all directions.

    A convex body shows a quarter of its surface on average (Cauchy). Flat ellipsoids and needles have areas, too.
    """
    wide = scales.astype(np.float64)
    products = (wide * np.roll(wide, 1, axis=1)) ** THOMSEN
    return np.asarray(np.pi * products.mean(axis=1) ** (1.0 / THOMSEN))


def merged(scene: StoredScene, starts: Integers, variances: Float64) -> tuple[StoredScene, Float64]:
    """Merges each run of Gaussians into one that has the moments of their sum.

    The weight of a Gaussian is its mass, opacity times projected area. Mean and covariance are those of the weighted
    sum, including the spread of the means. The harmonics are the weighted mean. Optical depths add up and spread over
    the new area, so that overlapping Gaussians block no more than before. A depth whose peak is above 1 has a flat top
    that no Gaussian matches: a Gaussian as wide as the top would blur its surroundings, and one with the moments alone
    would leave holes between neighbours on a wall. The area is the geometric mean of the two, which is closest in
    pictures.

    Args:
        scene: N Gaussians.
        starts: [M] where the runs start, the first at 0; each has at least one Gaussian.
        variances: [N] the mean squared distance by which earlier merges moved the content of each Gaussian.

    Returns:
        M Gaussians and their variances, scene units squared.
    """
    counts = np.diff(np.append(starts, len(scene)))
    areas = areas_of(scene.scales)
    opacities = scene.opacities.astype(np.float64)
    weights = opacities * areas + TINY
    sums = np.add.reduceat(weights, starts)
    shares = weights / np.repeat(sums, counts)

    def mean(values: npt.NDArray[Any]) -> Float64:
        shaped = shares.reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray(np.add.reduceat(values * shaped, starts, axis=0))

    # Moments about the first mean of each run keep their precision far from the origin.
    origins = scene.means[starts].astype(np.float64)
    offsets = scene.means - np.repeat(origins, counts, axis=0)
    centres = mean(offsets)
    offsets -= np.repeat(centres, counts, axis=0)
    quats, scales = _axes(mean(covariances_of(scene) + offsets[:, :, None] * offsets[:, None, :]))
    depths = np.add.reduceat(np.interp(opacities, MASSES, DEPTHS) * areas, starts) / (areas_of(scales) + TINY)
    new_opacities = -np.expm1(-depths)
    scales *= (np.interp(depths, DEPTHS, MASSES) / (new_opacities + TINY)).clip(1.0)[:, None] ** 0.25
    single = counts == 1
    result = replace(
        scene,
        means=np.asarray(origins + centres, np.float32),
        quats=_kept(single, scene.quats[starts], quats),
        scales=_kept(single, scene.scales[starts], scales),
        opacities=_kept(single, scene.opacities[starts], np.minimum(new_opacities, 1.0)),
        sh=np.asarray(mean(scene.sh), np.float32),
    )
    return result, mean(variances + np.square(offsets).sum(axis=1))


def error_of(scene: StoredScene, variances: Float64) -> float:
    """Returns the geometric error of merged Gaussians: how far apart their content was before, in scene units.

    It is the root of the mean squared distance between two pieces of a Gaussian's content, weighted by mass. See
    docs/formats.md for what pictures lose where the error is one pixel.
    """
    weights = scene.opacities * areas_of(scene.scales) + TINY
    return float(np.sqrt(2.0 * (weights * variances).sum() / weights.sum()))


def _kept(single: npt.NDArray[np.bool_], old: Float32, new: Float64) -> Float32:
    """Returns the old values for runs of a single Gaussian, else the new ones."""
    return np.where(single.reshape(-1, *[1] * (old.ndim - 1)), old, new).astype(np.float32)


def _axes(covariances: Float64) -> tuple[Float64, Float64]:
    """Returns quaternions [M, 4] and scales [M, 3] of covariances [M, 3, 3]."""
    values, axes = np.linalg.eigh(covariances)
    # No quaternion represents mirrored axes.
    axes[..., 0] *= np.sign(np.linalg.det(axes))[:, None]
    quats = np.stack(quaternions(axes, _stack), axis=1)
    return unit_quats(quats), np.sqrt(np.maximum(values, 0.0))


def _stack(values: Any, axis: int) -> Any:
    return np.stack(values, axis=axis)
