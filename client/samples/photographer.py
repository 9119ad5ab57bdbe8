"""Pictures of the still life by sphere tracing, in the light of one lamp and the sky."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass
from threading import Event

import numpy as np

from lumigrad.client.base.arrays import Array, Float64
from lumigrad.client.samples import still_life
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel

_LAMP = np.array([0.42, -0.48, 0.77]) / np.linalg.norm([0.42, -0.48, 0.77])
_LAMP_LIGHT, _SKY_LIGHT = 0.68, 0.48
_SHININESS = 40
_STEPS, _SHADOW_STEPS = 96, 40
_TOUCH = 8e-4
# The width of a shadow's edge, relative to the distance of what casts it.
_PENUMBRA = 0.06
# Pixels that differ by more from a neighbour get three more rays.
_CONTRAST = 0.06
# The rays that are followed together.
_PART = 1 << 14
_OFFSETS = ((-0.25, 0.125), (0.125, 0.25), (0.25, -0.125), (-0.125, -0.25))


@dataclass(frozen=True)
class Exposure:
    """A photograph, and the points that it shows.

    Attributes:
        pixels: [H, W, 4] uint8: colour and coverage, 0 where there is nothing.
        places: [M, 3] the points in the middle of the pixels that show something; world frame.
        colors: [M, 3] their pixels' colours, 0 to 1.
    """

    pixels: Array
    places: Float64
    colors: Float64


def photograph(camera: Camera, stopping: Event | None = None) -> Exposure:
    """Takes a picture with a pinhole camera; raises CancelledError soon after `stopping` is set."""
    model = camera.model
    assert isinstance(model, OpenCVModel)
    rows, columns = np.mgrid[: camera.height, : camera.width]
    middle = np.stack([columns.ravel(), rows.ravel()], axis=1) + 0.5
    first, places = _seen_in_parts(model, middle, stopping)
    shape = camera.height, camera.width
    rough = _edges(first.reshape(*shape, 4)).ravel()
    values = first.copy()
    values[rough] = np.mean([_seen_in_parts(model, middle[rough] + offset, stopping)[0] for offset in _OFFSETS], axis=0)
    hit = first[:, 3] > 0
    coverage = values[:, 3:]
    straight = np.concatenate([values[:, :3] / np.maximum(coverage, 1e-9), coverage], axis=1)
    pixels = np.rint(255 * straight.clip(0, 1)).astype(np.uint8).reshape(*shape, 4)
    return Exposure(pixels, places[hit], first[hit, :3])


def _edges(values: Float64) -> Array:
    """Returns [H, W], whether a pixel differs from one beside it."""
    rough = np.zeros(values.shape[:2], bool)
    across = np.abs(np.diff(values, axis=1)).max(axis=2) > _CONTRAST
    down = np.abs(np.diff(values, axis=0)).max(axis=2) > _CONTRAST
    rough[:, 1:] |= across
    rough[:, :-1] |= across
    rough[1:] |= down
    rough[:-1] |= down
    return rough


def _seen_in_parts(model: OpenCVModel, pixels: Float64, stopping: Event | None) -> tuple[Float64, Float64]:
    """Returns `_seen` of places in the picture, a part at a time."""
    parts = []
    for start in range(0, len(pixels), _PART):
        if stopping is not None and stopping.is_set():
            raise CancelledError
        parts.append(_seen(model, pixels[start : start + _PART]))
    return (
        np.concatenate([np.empty((0, 4)), *(values for values, _ in parts)]),
        np.concatenate([np.empty((0, 3)), *(places for _, places in parts)]),
    )


def _seen(model: OpenCVModel, pixels: Float64) -> tuple[Float64, Float64]:
    """Returns colour and coverage [N, 4] at places [N, 2] in the picture, and the points [N, 3] that are seen there."""
    inside = np.stack(
        [(pixels[:, 0] - model.cx) / model.fx, (pixels[:, 1] - model.cy) / model.fy, np.ones(len(pixels))], axis=1
    )
    directions = inside @ model.rotation
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    nearest, farthest = _around_all(model.eye, directions)
    depths, kinds = _traced(model.eye, directions, nearest, farthest)
    hit = np.flatnonzero(kinds >= 0)
    values, places = np.zeros((len(pixels), 4)), np.zeros((len(pixels), 3))
    places[hit] = model.eye + depths[hit, None] * directions[hit]
    values[hit, :3] = _lit(places[hit], kinds[hit], directions[hit])
    values[hit, 3] = 1.0
    return values, places


def _around_all(eye: Float64, directions: Float64) -> tuple[Float64, Float64]:
    """Returns the interval of depths [N] of each ray in the ball around everything; empty where it misses the ball."""
    offset = eye - np.array(still_life.FOCUS)
    middle = -directions @ offset
    half = np.sqrt(np.maximum(still_life.RADIUS**2 - (offset @ offset - middle**2), 0.0))
    return middle - half, middle + half


def _traced(eye: Float64, directions: Float64, nearest: Float64, farthest: Float64) -> tuple[Float64, Array]:
    """Returns the depth [N] of what each ray meets first, and its kind; -1: nothing."""
    depths, kinds = nearest.copy(), np.full(len(nearest), -1)
    active = np.flatnonzero(nearest < farthest)
    for _ in range(_STEPS):
        free, kind = still_life.distances(eye + depths[active, None] * directions[active])
        touching = free < _TOUCH
        kinds[active[touching]] = kind[touching]
        depths[active] += np.where(touching, 0.0, free)
        active = active[~touching & (depths[active] < farthest[active])]
        if not len(active):
            break
    return depths, kinds


def _lit(places: Float64, kinds: Array, directions: Float64) -> Float64:
    """Returns the colours [N, 3] of points in the light, seen along directions."""
    normals = _normals(places)
    start = places + 6 * _TOUCH * normals
    facing = np.clip(normals @ _LAMP, 0, 1)
    lamp = np.where(facing > 0, _unshadowed(start), 0.0)
    # A surface close above hides the sky.
    openness = np.mean([np.clip(still_life.distances(places + r * normals)[0] / r, 0, 1) for r in (0.06, 0.2)], axis=0)
    sky = _SKY_LIGHT * (0.6 + 0.4 * normals[:, 2]) * (0.35 + 0.65 * openness)
    half = _LAMP - directions
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    shine = still_life.gloss(kinds) * lamp * np.clip(np.sum(normals * half, axis=1), 0, 1) ** _SHININESS
    diffuse = still_life.colors(places, kinds) * (_LAMP_LIGHT * facing * lamp + sky)[:, None]
    # Levels of a picture are not linear in light.
    return np.asarray(np.clip(1.25 * diffuse + shine[:, None], 0, 1) ** (1 / 1.6))


def _normals(places: Float64) -> Float64:
    """Returns [N, 3], unit gradients of the distance."""
    step = 1e-4
    sides = [
        still_life.distances(places + step * axis)[0] - still_life.distances(places - step * axis)[0]
        for axis in np.eye(3)
    ]
    gradients = np.stack(sides, axis=1)
    return np.asarray(gradients / np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-12))


def _unshadowed(places: Float64) -> Float64:
    """Returns [N], the share of the lamp that is visible from points."""
    share, depths = np.ones(len(places)), np.full(len(places), 0.02)
    active = np.arange(len(places))
    for _ in range(_SHADOW_STEPS):
        free, _ = still_life.distances(places[active] + depths[active, None] * _LAMP)
        share[active] = np.minimum(share[active], free / (_PENUMBRA * depths[active]))
        depths[active] += np.maximum(free, 0.01)
        active = active[(share[active] > 0) & (depths[active] < 2 * still_life.RADIUS)]
        if not len(active):
            break
    return np.asarray(np.clip(share, 0, 1))
