"""The geometry of a ray and a sphere in Pulsar, which forward and backward share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from support.spheres.compat_math import EPS, Floats, dot, f32, length, scaled
from support.spheres.compat_setup import NativeCamera, rays, rotated


@dataclass(frozen=True)
class Pairs:
    """Section 5.1 for any number of pairs; every array has one entry (or three-vector) per pair."""

    raw_ray: Floats
    ray: Floats
    centre: Floats
    # The vector to the centre from the point of the ray at the same distance.
    chord: Floats
    chord_length: Floats
    closeness: Floats
    hit: NDArray[np.bool_]
    along: Floats
    half_chord: Floats
    depth: Floats
    normalized_depth: Floats


def pairs(
    camera: NativeCamera,
    direction: Floats,
    distance: Floats,
    radius: Floats,
    x: NDArray[np.int64],
    y: NDArray[np.int64],
) -> Pairs:
    """The geometry of spheres (direction, distance, radius as in `Signatures`) and aperture pixels (x, y)."""
    raw_ray, ray = rays(camera, x, y)
    centre = scaled(direction, distance)
    measure = _orthogonal if camera.orthogonal else _perspective
    if camera.orthogonal:
        centre = rotated(camera, centre)
    chord, across, along, central, pixels = measure(camera, centre, distance, radius, ray, x, y)
    chord_length = length(chord)
    closeness = np.clip(f32(1) - chord_length * (f32(1) / radius), f32(0), f32(1))
    # A sphere smaller than a pixel covers the pixels next to its centre fully.
    closeness = np.where(central & (pixels < f32(1)), f32(1), closeness)
    half_chord = np.sqrt((radius + across) * np.maximum(radius - across, f32(0)))
    depth = along - half_chord
    return Pairs(
        raw_ray=raw_ray, ray=ray, centre=centre, chord=chord, chord_length=chord_length, closeness=closeness,
        hit=np.asarray((radius >= chord_length) | central), along=along, half_chord=half_chord, depth=depth,
        normalized_depth=(depth - camera.min_depth) * camera.depth_scale,
    )  # fmt: skip


Measures = tuple[Floats, Floats, Floats, NDArray[np.bool_], Floats]


def _perspective(
    camera: NativeCamera,
    centre: Floats,
    distance: Floats,
    radius: Floats,
    ray: Floats,
    x: NDArray[np.int64],
    y: NDArray[np.int64],
) -> Measures:
    """Chord, perpendicular distance, distance along the ray, whether the pixel is central, radius in pixels."""
    chord = centre - scaled(ray, distance)
    # The original evaluates this limit in double precision.
    reach = np.float64(camera.half_pixel) * 1.5 * distance.astype(np.float64)
    limit = (reach * np.float64(f32(1) / camera.focal_length)).astype(f32)
    along = dot(centre, ray)
    across = np.sqrt((distance + along) * np.maximum(distance - along, f32(0)))
    pixels = radius * camera.focal_length * (f32(1) / distance) / (f32(2) * camera.half_pixel)
    return chord, across, np.minimum(along, distance), limit > length(chord), pixels


def _orthogonal(
    camera: NativeCamera,
    centre: Floats,
    distance: Floats,
    radius: Floats,
    ray: Floats,
    x: NDArray[np.int64],
    y: NDArray[np.int64],
) -> Measures:
    """Like `_perspective`; chord and central pixel take the film's centre half a pixel apart, as the original does."""
    pixel = f32(2) * camera.half_pixel
    offsets, central = [], np.ones(x.shape, np.bool_)
    for axis, (at, size) in enumerate(zip((x, y), camera.aperture, strict=True)):
        at32, size32 = at.astype(f32), f32(size)
        offsets.append(centre[..., axis] - (at32 - size32 * f32(0.5)) * pixel)
        projected = centre[..., axis] / pixel + (size32 - f32(1)) / f32(2)
        central &= np.abs(projected - at32) < f32(0.5) + EPS
    chord = np.stack([*offsets, np.zeros(x.shape, f32)], -1)
    return chord, length(chord), np.abs(centre[..., 2]), central, radius / pixel
