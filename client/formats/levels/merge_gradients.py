"""The derivative of a merge: gradients of the Gaussians that were merged, see `merging.merged`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.formats.levels.merging import DEPTHS, MASSES, THOMSEN, TINY, areas_of
from lumigrad.client.values.affine import matrices_of_quats

# [N, ..] float64, the tensors of Gaussians by name, or gradients of them.
Rows = Mapping[str, Float64]
NAMES = ("means", "quats", "scales", "opacities", "sh")
# Variances that differ by less than this fraction of the largest count as equal: rotations then change nothing, and
# their gradient is rounding noise.
_ALIKE = 1e-5


def through_merge(
    parts: Rows, merged: Rows, starts: npt.NDArray[np.int64], upstream: Mapping[str, Float64]
) -> dict[str, Float64]:
    """Returns the gradients of N Gaussians, given the gradients of the M Gaussians that they were merged into.

    Args:
        parts: N Gaussians.
        merged: M Gaussians as they are drawn; gradients flow to the covariances that their quats and scales describe.
        starts: [M] where each merged run starts.
        upstream: gradients of the M Gaussians.
    """
    counts = np.diff(np.append(starts, len(parts["means"])))
    of = np.repeat(np.arange(len(starts)), counts)
    areas, rotations = areas_of(parts["scales"]), matrices_of_quats(parts["quats"])
    opacities, weights = parts["opacities"], parts["opacities"] * areas + TINY
    sums = np.add.reduceat(weights, starts)
    shares = weights / sums[of]
    offsets = parts["means"] - _sums(shares, parts["means"], starts)[of]
    second = _covariances(rotations, parts["scales"]) + offsets[:, :, None] * offsets[:, None, :]
    moments = _sums(shares, second, starts)
    depths = np.add.reduceat(np.interp(opacities, MASSES, DEPTHS) * areas, starts)
    of_moments, of_depths = _of_moments(moments, depths, merged, upstream)

    # The contribution of the weights to means, covariances and harmonics.
    of_shares = (upstream["means"][of] * offsets).sum(1) + (of_moments[of] * second).sum((1, 2))
    of_shares += (upstream["sh"][of] * parts["sh"]).sum((1, 2))
    of_weights = (of_shares - np.add.reduceat(shares * of_shares, starts)[of]) / sums[of]
    of_areas = of_weights * opacities + of_depths[of] * np.interp(opacities, MASSES, DEPTHS)
    of_covariances = shares[:, None, None] * of_moments[of]
    of_quats, of_scales = _of_axes(of_covariances, parts["quats"], rotations, parts["scales"])
    found = {
        "means": shares[:, None] * (upstream["means"][of] + 2.0 * (of_moments[of] @ offsets[:, :, None])[:, :, 0]),
        "quats": of_quats,
        "scales": of_scales + of_areas[:, None] * _slopes_of_areas(parts["scales"]),
        "opacities": of_weights * areas + of_depths[of] * areas * _slopes(opacities, MASSES, DEPTHS),
        "sh": shares[:, None, None] * upstream["sh"][of],
    }
    single = counts[of] == 1
    return {name: np.where(_shaped(single, value), upstream[name][of], value) for name, value in found.items()}


def _of_moments(
    moments: Float64, sums: Float64, merged: Rows, upstream: Mapping[str, Float64]
) -> tuple[Float64, Float64]:
    """Returns the gradients of second moments [M, 3, 3], and of the sums [M] of optical depths times areas."""
    values, axes = np.linalg.eigh(moments)
    scales = np.sqrt(np.maximum(values, TINY))
    areas = areas_of(scales) + TINY
    depths = sums / areas
    opacities = -np.expm1(-depths)
    ratios = np.interp(depths, DEPTHS, MASSES) / (opacities + TINY)
    widths = np.sqrt(ratios.clip(1.0))
    drawn = _of_covariances(matrices_of_quats(merged["quats"]), merged, upstream)
    of_widths = (drawn * moments).sum((1, 2))
    slopes = (_slopes(depths, DEPTHS, MASSES) - ratios * np.exp(-depths)) / (opacities + TINY)
    of_depths = upstream["opacities"] * np.exp(-depths)
    of_depths = of_depths + np.where(ratios > 1.0, of_widths * 0.5 / widths * slopes, 0.0)
    of_scales = -(of_depths * depths / areas)[:, None] * _slopes_of_areas(scales) / (2.0 * scales)
    return widths[:, None, None] * drawn + (axes * of_scales[:, None, :]) @ axes.swapaxes(1, 2), of_depths / areas


def _of_covariances(rotations: Float64, merged: Rows, upstream: Mapping[str, Float64]) -> Float64:
    """Returns the gradients [M, 3, 3] of the covariances that quaternions and scales describe."""
    scales, variances = merged["scales"], merged["scales"] ** 2
    turns = 0.5 * (_turned(merged["quats"]) * upstream["quats"][:, None, :]).sum(2)
    least = _ALIKE * variances.max(1) + TINY
    inner = np.zeros((len(scales), 3, 3))
    inner[:, range(3), range(3)] = upstream["scales"] * scales / (2.0 * (variances + _ALIKE * least[:, None]))
    for turn, (i, j) in enumerate(((2, 1), (0, 2), (1, 0))):
        gap = variances[:, j] - variances[:, i]
        inner[:, i, j] = inner[:, j, i] = 0.5 * turns[:, turn] * gap / (gap**2 + least**2)
    return np.asarray(rotations @ inner @ rotations.swapaxes(1, 2))


def _of_axes(of_covariances: Float64, quats: Float64, rotations: Float64, scales: Float64) -> tuple[Float64, Float64]:
    """Returns the gradients of quaternions [N, 4] and scales [N, 3], given those of covariances."""
    inner = rotations.swapaxes(1, 2) @ of_covariances @ rotations
    pushes = 2.0 * inner * (scales**2)[:, None, :]
    turns = np.stack([pushes[:, i, j] - pushes[:, j, i] for i, j in ((2, 1), (0, 2), (1, 0))], axis=1)
    lengths = np.maximum(np.square(quats).sum(1), TINY)
    of_quats = 2.0 * (_turned(quats) * turns[:, :, None]).sum(1) / lengths[:, None]
    return of_quats, 2.0 * scales * inner[:, range(3), range(3)]


def _turned(quats: Float64) -> Float64:
    """Returns [N, 3, 4], quaternions times i, j and k: twice their change per radian of rotation about their axes."""
    w, x, y, z = quats.T
    return np.stack([np.stack([-x, w, z, -y], 1), np.stack([-y, -z, w, x], 1), np.stack([-z, y, -x, w], 1)], axis=1)


def _covariances(rotations: Float64, scales: Float64) -> Float64:
    axes = rotations * scales[:, None, :]
    return np.asarray(axes @ axes.swapaxes(1, 2))


def _slopes_of_areas(scales: Float64) -> Float64:
    """Returns the derivatives [N, 3] of `areas_of`."""
    last, following = np.roll(scales, 1, axis=1), np.roll(scales, -1, axis=1)
    sums = ((scales * last) ** THOMSEN).mean(1)[:, None]
    own = last * (scales * last) ** (THOMSEN - 1.0) + following * (scales * following) ** (THOMSEN - 1.0)
    return np.asarray(np.pi / 3.0 * np.maximum(sums, TINY) ** (1.0 / THOMSEN - 1.0) * own)


def _slopes(values: Float64, places: Float64, heights: Float64) -> Float64:
    """Returns the derivatives of `np.interp(values, places, heights)`."""
    after = np.searchsorted(places, values, "right").clip(1, len(places) - 1)
    steps = (heights[after] - heights[after - 1]) / (places[after] - places[after - 1])
    return np.asarray(np.where((values < places[0]) | (values >= places[-1]), 0.0, steps))


def _sums(shares: Float64, values: Float64, starts: npt.NDArray[np.int64]) -> Float64:
    return np.asarray(np.add.reduceat(_shaped(shares, values) * values, starts, axis=0))


def _shaped(rows: npt.NDArray[Any], like: Float64) -> npt.NDArray[Any]:
    """Returns values per row, shaped to broadcast against `like`."""
    return rows.reshape(-1, *[1] * (like.ndim - 1))
