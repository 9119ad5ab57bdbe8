"""Warnings of unusual values: coordinates too far from 0 for float32, levels for colours, fractions for pixels."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from lumigrad.client.base.arrays import Array, Float64
from lumigrad.client.errors import PrecisionWarning

# The coarsest steps of float32 that pass without a word: relative to the extent of an object, and to the size of the
# parts that it consists of, such as Gaussians.
_OF_EXTENT, _OF_PARTS = 1e-3, 0.1
# The extent is taken from this many rows. A smaller share than this at either end does not count, so that strays
# neither hide what is wrong with the others nor are taken for them.
_SAMPLES, _STRAYS = 512, 0.02
# Colours with 1 for white exceed this only in single lights; levels do in most of a picture.
_LEAST_LEVEL, _SHARE_OF_LEVELS = 16, 0.05
# Fractions of a picture's size are below these for focal lengths, in parts of it, and principal points, in pixels.
_SHORT_FOCAL_LENGTH, _CORNER = 0.05, 1.0
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def step_of(largest: float) -> float:
    """Returns the distance between neighbouring numbers of float32 at a coordinate; infinity beyond its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        step = float(np.spacing(np.float32(largest)))
    return step if np.isfinite(step) else np.inf


def sample_of(rows: Array) -> Array:
    """Returns some rows of an array [.., K], evenly spread, [N, K]."""
    flat = rows.reshape(-1, rows.shape[-1]) if rows.size else rows.reshape(0, rows.shape[-1])
    return flat[:: -(-len(flat) // _SAMPLES) or 1]


def median_of(sizes: Array) -> float:
    """Returns about the median of sizes [N], or of the largest ones in rows [.., K]; 0 without any."""
    sample = sample_of(sizes).max(axis=1) if sizes.ndim > 1 else sizes[:: -(-len(sizes) // _SAMPLES) or 1]
    return float(np.sort(sample)[len(sample) // 2]) if len(sample) else 0.0


def box_of(points: Array) -> tuple[Float64, Float64]:
    """Returns the lower and the upper corner [3] of the box around nearly all finite points [.., 3]; at least one."""
    sample = sample_of(points).astype(np.float64)
    if not np.isfinite(sample).all():
        sample = sample[np.isfinite(sample).all(axis=1)]
    if not len(sample):
        return np.zeros(3), np.zeros(3)
    ordered, strays = np.sort(sample, axis=0), int(_STRAYS * len(sample))
    return ordered[strays], ordered[-1 - strays]


def lost_by(points: Array, part: float = 0.0) -> str:
    """Says what float32 does to points [.., 3] so far from 0; empty where its steps are fine enough.

    Args:
        points: the points, of any float type.
        part: size of the parts that they are the places of, such as Gaussians; 0: unknown.
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
    """Says what the step of float32 is at the largest coordinate, if that exceeds a limit; else empty."""
    if largest * 2.0**-23 <= limit:
        return ""
    step = step_of(largest)
    return f"at coordinates of {largest:.4g} float32 has steps of {step:.2g}" if step > limit else ""


def lost_by_size(position: Array, size: float) -> str:
    """Says what float32 does to an object of a size at a position [3]; empty where its steps are fine enough."""
    found = lost_at(max(map(abs, position.tolist())), _OF_EXTENT * size if size > 0 else np.inf)
    return f"{found}, coarse for a size of {size:.3g}; {_remedy(position, size)}" if found else ""


def round_point(point: Float64, extent: float) -> Float64:
    """Returns a point [3] rounded to about an extent, so that it is easy to read and to remember."""
    return np.round(point, -int(np.floor(np.log10(extent)))) + 0.0


def _remedy(center: Float64, extent: float) -> str:
    offset = ", ".join(f"{value:.15g}" for value in round_point(center, extent / 10))
    return f"subtract an offset such as ({offset}) in float64 first, and add it to the results"


def lost_by_spheres(spheres: Array) -> str:
    """Says what float32 does to spheres [.., 4], centres and radii, or to points [.., 3]; else empty."""
    sample = sample_of(spheres)
    if not len(sample):
        return ""
    radii = sample[:, 3] if sample.shape[1] == 4 else np.zeros(len(sample))
    solid = radii > 0
    sizes = radii[solid]
    if not len(sizes):
        return lost_by(sample[:, :3])
    limit = _OF_EXTENT * 2 * float(sizes.min())
    # Nearly all calls end here.
    if float(np.abs(sample[:, :3]).max()) * 2.0**-23 <= limit:
        return ""
    centers = sample[solid, :3]
    if step_of(float(np.abs(centers).max())) <= limit:
        return ""
    low, high = box_of(centers)
    return lost_by_size(np.where(np.abs(low) > np.abs(high), low, high), 2 * median_of(sizes))


def warn_of(name: str, lost: str) -> None:
    """Warns of what is lost of an argument, at the line that called Lumigrad; nothing if nothing is, or it was said.

    Args:
        name: the argument.
        lost: what `lost_by` says.
    """
    if lost and not _silent.get():
        warn_caller(f"{name}: {lost}", PrecisionWarning)


def warn_of_levels(name: str, colors: Array) -> None:
    """Warns, as `warn_of`, of colours that are probably levels of 8 or 16 bits; single bright ones are none."""
    if np.count_nonzero(colors > _LEAST_LEVEL) > _SHARE_OF_LEVELS * colors.size and not _silent.get():
        text = f"expected colours with 1 for white, got many beyond {_LEAST_LEVEL}, which are used as they are"
        warn_caller(f"{name}: {text}; pass levels of 0 to 255 as uint8, or divide them by the largest")


def warn_of_bytes(name: str, colors: Array) -> None:
    """Warns, as `warn_of`, of colours in uint8, which nothing divides by 255; flags of 0 and 1 are no levels."""
    if colors.dtype == np.uint8 and colors.max(initial=0) > 1 and not _silent.get():
        text = "expected colours with 1 for white, got uint8, whose values are used as they are"
        warn_caller(f"{name}: {text}; divide levels by 255")


def warn_of_fractions(focal: tuple[float, float], center: tuple[float, float], size: tuple[int, int]) -> None:
    """Warns, as `warn_of`, of a focal length and a principal point that are probably fractions of the picture's size.

    Args:
        focal: fx, fy.
        center: cx, cy.
        size: width and height, pixels.
    """
    is_short = max(focal[0] / size[0], focal[1] / size[1]) < _SHORT_FOCAL_LENGTH
    if is_short and min(center) >= 0 and max(center) <= _CORNER and not _silent.get():
        given = ", ".join(f"{value:g}" for value in (*focal, *center))
        text = f"expected pixels, got {given} for a picture of {size[0]} x {size[1]}"
        warn_caller(f"fx, fy, cx, cy: {text}; multiply fractions of the picture by its width and height")


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line that called Lumigrad."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(("lumigrad.", "dataclasses")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def said() -> Iterator[None]:
    """Silence `warn_of` for a `with` block whose warnings have been given already, or do not apply."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)
