"""Compares the steps of float32 at coordinates far from 0 with the size of the objects there."""

from __future__ import annotations

import numpy as np

from lumigrad.client.base.arrays import Array, Float64

# The coarsest steps of float32 that cause no warning: relative to the extent of an object, and to the size of its
# parts, such as Gaussians.
_OF_EXTENT, _OF_PARTS = 1e-3, 0.1
# The extent is estimated from this many rows. This share at either end is ignored, so that outliers neither hide
# problems of the other rows nor cause warnings themselves.
_SAMPLES, _STRAYS = 512, 0.02


def step_of(largest: float) -> float:
    """Returns the distance between adjacent float32 numbers at a coordinate; infinity beyond the range of float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        step = float(np.spacing(np.float32(largest)))
    return step if np.isfinite(step) else np.inf


def sample_of(rows: Array) -> Array:
    """Returns evenly spaced rows [N, K] of an array [.., K]."""
    flat = rows.reshape(-1, rows.shape[-1]) if rows.size else rows.reshape(0, rows.shape[-1])
    return flat[:: -(-len(flat) // _SAMPLES) or 1]


def median_of(sizes: Array) -> float:
    """Returns the approximate median of sizes [N], or of the largest values in rows [.., K]; 0 if there are none."""
    sample = sample_of(sizes).max(axis=1) if sizes.ndim > 1 else sizes[:: -(-len(sizes) // _SAMPLES) or 1]
    return float(np.sort(sample)[len(sample) // 2]) if len(sample) else 0.0


def box_of(points: Array) -> tuple[Float64, Float64]:
    """Returns the lower and upper corner [3] of the box around nearly all finite points [.., 3]; zeros without any."""
    sample = sample_of(points).astype(np.float64)
    if not np.isfinite(sample).all():
        sample = sample[np.isfinite(sample).all(axis=1)]
    if not len(sample):
        return np.zeros(3), np.zeros(3)
    ordered, strays = np.sort(sample, axis=0), int(_STRAYS * len(sample))
    return ordered[strays], ordered[-1 - strays]


def lost_by(points: Array, part: float = 0.0) -> str:
    """Describes how coarse float32 is for points [.., 3] far from 0; returns "" if it is fine enough.

    Args:
        points: the points, of any float type.
        part: size of the parts at the points, such as Gaussians; 0: unknown.
    """
    low, high = box_of(points)
    extent = float((high - low).max())
    limits = [share * size for share, size in ((_OF_EXTENT, extent), (_OF_PARTS, part)) if size > 0]
    found = lost_at(float(np.abs([low, high]).max()), min(limits, default=np.inf))
    if not found:
        return ""
    parts = f" with parts of {part:.3g}" if part > 0 else ""
    return f"{found}, coarse for an extent of {extent:.3g}{parts}; {_remedy((low + high) / 2, extent or part)}"


def lost_at(largest: float, limit: float) -> str:
    """Describes the step of float32 at the largest coordinate if it exceeds a limit; else returns ""."""
    if largest * 2.0**-23 <= limit:
        return ""
    step = step_of(largest)
    return f"at coordinates of {largest:.4g} float32 has steps of {step:.2g}" if step > limit else ""


def lost_by_size(position: Array, size: float) -> str:
    """Describes how coarse float32 is for an object of a given size at a position [3]; else returns ""."""
    found = lost_at(max(map(abs, position.tolist())), _OF_EXTENT * size if size > 0 else np.inf)
    return f"{found}, coarse for a size of {size:.3g}; {_remedy(position, size)}" if found else ""


def round_point(point: Float64, extent: float) -> Float64:
    """Rounds a point [3] to about the precision of an extent, so that it is easy to read and to remember."""
    return np.round(point, -int(np.floor(np.log10(extent)))) + 0.0


def _remedy(center: Float64, extent: float) -> str:
    offset = ", ".join(f"{value:.15g}" for value in round_point(center, extent / 10))
    return f"subtract an offset such as ({offset}) in float64 first, and add it to the results"


def lost_by_spheres(spheres: Array) -> str:
    """Describes how coarse float32 is for spheres [.., 4] (centres and radii) or points [.., 3]; else returns ""."""
    sample = sample_of(spheres)
    if not len(sample):
        return ""
    radii = sample[:, 3] if sample.shape[1] == 4 else np.zeros(len(sample))
    solid = radii > 0
    sizes = radii[solid]
    if not len(sizes):
        return lost_by(sample[:, :3])
    limit = _OF_EXTENT * 2 * float(sizes.min())
    # The fast path of nearly all calls.
    if float(np.abs(sample[:, :3]).max()) * 2.0**-23 <= limit:
        return ""
    centers = sample[solid, :3]
    if step_of(float(np.abs(centers).max())) <= limit:
        return ""
    low, high = box_of(centers)
    return lost_by_size(np.where(np.abs(low) > np.abs(high), low, high), 2 * median_of(sizes))
